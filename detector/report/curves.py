"""Curves: losses and metrics over the epochs, learning rates over the iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boltbox.detector.report.figure import COLOURS, DASHES, picture, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]
Panels = Mapping[str, Mapping[str, Points]]  # lines by name, by title

MARKS = "os^DvP"
MOST_MARKS = 12  # of a line
LOSS_TITLES = {"box_loss": "Box loss", "obj_loss": "Objectness loss", "cls_loss": "Class loss"}
EPOCHS = {  # title and columns of metrics.csv; the losses come before
    "Precision and recall": ("val/P", "val/R"),
    "mAP and fitness": ("val/mAP50", "val/mAP50-95", "val/fitness"),
    "COCO's AP by size": (
        "val/coco/AP",
        *(f"val/coco/AP_{s}" for s in ("small", "medium", "large")),
    ),
    "Learning rate": ("lr/bias", "lr/weight", "lr/norm"),
    "Seconds an epoch": ("seconds",),
}
ITERATIONS = {  # title and columns of iterations.csv; the losses come after
    "Learning rate": ("lr/bias", "lr/weight", "lr/norm"),
    "Momentum": ("momentum",),
    "Iterations a step": ("accumulate",),
}


def plot_curves(rows: Rows, path: Path) -> None:
    """Losses, metrics and learning rates over the epochs, to an image file.

    Args:
        rows: of metrics.csv, by column.
    """
    losses = {loss_title(n): (f"train/{n}", f"val/{n}") for n in loss_names(rows)}
    panels = {
        title: {column: points(rows, "epoch", column, first=1) for column in columns}
        for title, columns in {**losses, **EPOCHS}.items()
    }
    draw_panels(panels, "epoch", path)


def plot_iterations(rows: Rows, path: Path) -> None:
    """Learning rates, momentum, accumulation and losses over the iterations, to an image file.

    Args:
        rows: of iterations.csv, by column.
    """
    others = {"iteration", "epoch", *(name for columns in ITERATIONS.values() for name in columns)}
    losses = tuple(name for name in (rows[0] if rows else ()) if name not in others)
    panels = {
        title: {column: points(rows, "iteration", column) for column in columns}
        for title, columns in {**ITERATIONS, "Training losses": losses}.items()
    }
    draw_panels(panels, "iteration", path)


def draw_panels(panels: Panels, x: str, path: Path) -> None:
    """Three panels a row, to a PNG file; those without a point are left out."""
    panels = {title: lines for title, lines in panels.items() if any(lines.values())}
    rows = math.ceil(len(panels) / 3)
    with picture(path, 13, max(3.5 * rows, 0.5)) as figure:
        for k, (title, lines) in enumerate(panels.items(), 1):
            axis = figure.add_subplot(rows, 3, k)
            axis.set_title(title)
            add_lines(axis, x, lines)


def add_lines(axis: Axes, x: str, lines: Mapping[str, Points]) -> None:
    """Lines over whole numbers called `x`, with a legend if there are several."""
    from matplotlib.ticker import MaxNLocator

    for k, (name, pairs) in enumerate(lines.items()):
        if pairs:
            axis.plot(
                *zip(*pairs, strict=True),
                label=short(name),
                color=COLOURS[k % len(COLOURS)],
                linestyle=DASHES[k % len(DASHES)],
                marker=MARKS[k % len(MARKS)],
                markersize=4,
                markevery=max(len(pairs) // MOST_MARKS, 1),
            )
    axis.set_ylim(bottom=0)
    axis.set_xlabel(x)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axis.grid(visible=True)
    if len(lines) > 1:
        axis.legend(fontsize=9)


def loss_names(rows: Rows) -> list[str]:
    """Of the parts of the loss in a metrics.csv, whatever they are called."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [name.removeprefix("train/") for name in columns if name.startswith("train/")]


def loss_title(name: str) -> str:
    """
    >>> loss_title("obj_loss"), loss_title("centre_loss")
    ('Objectness loss', 'Centre loss')
    """
    return LOSS_TITLES.get(name, name.replace("_", " ").capitalize())


def points(rows: Rows, x: str, y: str, first: int = 0) -> Points:
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
