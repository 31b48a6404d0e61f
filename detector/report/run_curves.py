"""Curves of a run from its metrics.csv."""

import math
from pathlib import Path
from typing import Any

from detector.report.curves import loss_names, loss_title
from detector.report.figure import new_figure
from detector.system.atomic_file import write_atomically

PANELS = {  # after the losses
    "precision, recall": ("val/P", "val/R"),
    "mAP": ("val/mAP50", "val/mAP50-95", "val/coco/AP"),
    "learning rate": ("lr/bias", "lr/weight", "lr/norm"),
}
COLOURS = ("#0072B2", "#D55E00", "#009E73")
MARKS = ("o", "s", "^")


def plot_curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Losses, metrics and learning rates over the epochs, one panel each, to an image file."""
    from matplotlib.ticker import MaxNLocator

    losses = {loss_title(name).lower(): (f"train/{name}", f"val/{name}") for name in loss_names(rows)}
    panels = {**losses, **PANELS}
    lines = math.ceil(len(panels) / 3)
    figure = new_figure(13, 3.5 * lines, layout="constrained")
    axes = figure.subplots(lines, 3).flat
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, columns) in zip(axes, panels.items(), strict=False):
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
