"""Curves of a run from its metrics.csv."""

from pathlib import Path
from typing import Any

from detector.report.figure import new_figure
from detector.system.atomic_file import write_atomically

PANELS = {
    "box loss": ("train/box_loss", "val/box_loss"),
    "objectness loss": ("train/obj_loss", "val/obj_loss"),
    "class loss": ("train/cls_loss", "val/cls_loss"),
    "precision, recall": ("val/P", "val/R"),
    "mAP": ("val/mAP50", "val/mAP50-95", "val/coco/AP"),
    "learning rate": ("lr/bias", "lr/weight", "lr/norm"),
}
COLOURS = ("#0072B2", "#D55E00", "#009E73")
MARKS = ("o", "s", "^")


def plot_curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Losses, figures and learning rates over the epochs, one panel each, to an image file."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(13, 7, layout="constrained")
    for axis, (title, columns) in zip(figure.subplots(2, 3).flat, PANELS.items(), strict=True):
        for column, colour, mark in zip(columns, COLOURS, MARKS, strict=False):
            points = [(int(r["epoch"]) + 1, float(r[column])) for r in rows if r.get(column) not in (None, "")]
            if points:
                axis.plot(*zip(*points, strict=True), color=colour, marker=mark, markersize=3, label=column)
        axis.set_title(title)
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
        if axis.lines:
            axis.legend()
    write_atomically(path, lambda file: figure.savefig(file, dpi=110))
