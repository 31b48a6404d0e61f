"""Curves of a run: losses and metrics from epoch to epoch, learning rates and the like from
iteration to iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.report.figure import legend_label, new_figure
from boltbox.detector.report.panel import MARKS, few_marks, legend, panel, save, style
from boltbox.detector.system.atomic_file import write_atomically

LOSS_TITLES = {"box_loss": "Box loss", "obj_loss": "Objectness loss", "cls_loss": "Class loss"}
EPOCHS = {  # file: title and columns of metrics.csv; the losses come before
    "precision_recall": ("Precision and recall", ("val/P", "val/R")),
    "map": ("mAP and fitness", ("val/mAP50", "val/mAP50-95", "val/fitness")),
    "coco_ap": ("COCO's AP", ("val/coco/AP", "val/coco/AP50", "val/coco/AP75")),
    "coco_ap_size": (
        "COCO's AP by size",
        ("val/coco/AP_small", "val/coco/AP_medium", "val/coco/AP_large"),
    ),
    "coco_ar": (
        "COCO's AR by detections an image",
        ("val/coco/AR1", "val/coco/AR10", "val/coco/AR100"),
    ),
    "coco_ar_size": (
        "COCO's AR by size",
        ("val/coco/AR_small", "val/coco/AR_medium", "val/coco/AR_large"),
    ),
    "seconds": ("Seconds an epoch", ("seconds",)),
}
ITERATIONS = {  # file: title and columns of iterations.csv; the losses come after
    "lr": ("Learning rate", ("lr/bias", "lr/weight", "lr/norm")),
    "momentum": ("Momentum", ("momentum",)),
    "accumulate": ("Iterations a step (accumulation)", ("accumulate",)),
}
PANELS = {  # of plots/curves.png: title and columns of metrics.csv; the losses come before
    "precision, recall": ("val/P", "val/R"),
    "mAP": ("val/mAP50", "val/mAP50-95", "val/coco/AP"),
    "learning rate": ("lr/bias", "lr/weight", "lr/norm"),
}


def draw_epochs(rows: Sequence[Mapping[str, str]], folder: Path) -> list[Path]:
    """epochs_*.png; columns that the table lacks are left out, and so are panels without any."""
    drawn = []
    for name in loss_names(rows):
        lines = {
            split: points(rows, "epoch", f"{split}/{name}", first=1) for split in ("train", "val")
        }
        drawn += draw_lines(
            loss_title(name), "epoch", lines, folder / f"epochs_{name}.png", marks=True
        )
    for name, (title, columns) in EPOCHS.items():
        lines = {
            c.removeprefix("val/").removeprefix("coco/"): points(rows, "epoch", c, first=1)
            for c in columns
        }
        drawn += draw_lines(title, "epoch", lines, folder / f"epochs_{name}.png", marks=True)
    return drawn


def draw_iterations(rows: Sequence[Mapping[str, str]], folder: Path) -> list[Path]:
    """iterations_*.png."""
    drawn = []
    others = {
        "iteration",
        "epoch",
        *(column for _, columns in ITERATIONS.values() for column in columns),
    }
    losses = tuple(dict.fromkeys(column for row in rows for column in row if column not in others))
    for name, (title, columns) in {**ITERATIONS, "losses": ("Training losses", losses)}.items():
        lines = {c: points(rows, "iteration", c) for c in columns}
        drawn += draw_lines(
            title, "iteration", lines, folder / f"iterations_{name}.png", marks=False
        )
    return drawn


def plot_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Losses, metrics and learning rates over the epochs, one panel each, to an image file.

    Args:
        rows: of metrics.csv, by column.
    """
    losses = {
        loss_title(name).lower(): (f"train/{name}", f"val/{name}") for name in loss_names(rows)
    }
    panels = {**losses, **PANELS}
    lines = math.ceil(len(panels) / 3)
    figure = new_figure(13, 3.5 * lines, layout="constrained")
    axes = figure.subplots(lines, 3, squeeze=False).flat
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, columns) in zip(axes, panels.items(), strict=False):
        add_lines(
            axis,
            "epoch",
            {column: points(rows, "epoch", column, first=1) for column in columns},
            marks=True,
        )
        axis.set_title(title)
        axis.grid(alpha=0.3)
    write_atomically(path, lambda file: figure.savefig(file, dpi=110))


def loss_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the parts of the loss in a metrics.csv, whatever they are called."""
    columns = dict.fromkeys(column.partition("/") for row in rows for column in row)
    names = (
        name
        for split, _, name in columns
        if split == "train" or (split == "val" and name in LOSS_TITLES)
    )
    return list(dict.fromkeys(names))


def loss_title(name: str) -> str:
    """
    >>> loss_title("obj_loss"), loss_title("centre_loss")
    ('Objectness loss', 'Centre loss')
    """
    return LOSS_TITLES.get(name, name.replace("_", " ").capitalize())


def points(
    rows: Sequence[Mapping[str, Any]], x: str, y: str, first: int = 0
) -> list[tuple[float, float]]:
    """The pairs of numbers that a table holds; x counts from `first`. What is empty or no number is
    left out."""
    found = []
    for row in rows:
        try:
            pair = float(row[x]) + first, float(row[y])
        except (KeyError, TypeError, ValueError):
            continue
        if all(map(math.isfinite, pair)):
            found.append(pair)
    return found


def draw_lines(
    title: str, x: str, lines: Mapping[str, list[tuple[float, float]]], path: Path, marks: bool
) -> list[Path]:
    """The picture's path, or nothing if no line has a point."""
    if not any(lines.values()):
        return []
    figure, axis = panel(title, x)
    add_lines(axis, x, lines, marks)
    return [save(figure, path)]


def add_lines(
    axis: Any, x: str, lines: Mapping[str, list[tuple[float, float]]], marks: bool
) -> None:
    """Lines with a legend over whole numbers called `x`; thinner where one is drawn over the other,
    so that both are seen."""
    from matplotlib.ticker import MaxNLocator

    for k, (name, pairs) in enumerate(lines.items()):
        if pairs:
            mark = (
                {
                    "marker": MARKS[k % len(MARKS)],
                    "markersize": 4,
                    "markevery": few_marks(len(pairs)),
                }
                if marks
                else {}
            )
            axis.plot(
                *zip(*pairs, strict=True),
                label=legend_label(name),
                linewidth=max(2.4 - 0.5 * k, 1.2),
                **style(k),
                **mark,
            )
    top = max((y for pairs in lines.values() for _, y in pairs), default=0.0)
    axis.set_ylim(0, top * 1.08 if top > 0 else 1)
    axis.set_xlabel(x)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if len(lines) > 1:
        legend(axis)
