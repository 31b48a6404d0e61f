"""The confusion matrix as a picture, legible for one class and for thousands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from boltbox.detector.evaluation.confusion import Confusion
from boltbox.detector.report.figure import picture, short

DRAWN = 100  # classes, at most
WRITTEN = 20  # classes up to which the numbers stand in the cells


def draw_confusion(counted: Confusion, names: Sequence[str], path: Path) -> None:
    """Rows are what was predicted, columns what is true, each column in shares; the last row:
    missed, the last column: nothing there. Of more than DRAWN classes the commonest are shown, and
    the others together."""
    every = len(names) <= DRAWN
    classes = list(range(len(names))) if every else counted.commonest_classes(DRAWN)
    matrix = counted.matrix(classes)
    shares, n = matrix / np.maximum(matrix.sum(0), 1), len(matrix)
    labels = [short(names[c]) for c in classes]
    labels += [*["other classes"] * (n - len(labels) - 1), "background"]
    written = n <= WRITTEN + 1
    side, font = (2.5 + 0.45 * max(n, 4), 8) if written else (2.5 + 0.155 * n, 6)
    with picture(path, side + 0.7, side) as figure:
        axis = figure.add_subplot()
        image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(n), labels, rotation=90, fontsize=font)
        axis.set_yticks(range(n), labels, fontsize=font)
        axis.set_xlabel("true (background: false positives)")
        axis.set_ylabel("predicted (background: missed)")
        figure.colorbar(image, shrink=0.7, label="share of the true class")
        for y, x in zip(*np.nonzero(matrix), strict=True) if written else ():
            colour, text = "white" if shares[y, x] > 0.55 else "black", f"{shares[y, x]:.2f}"
            axis.text(x, y, text, ha="center", va="center", fontsize=font, color=colour)


def commonest(
    counted: Confusion, names: Sequence[str], most: int = 10
) -> list[tuple[str, str, int, float]]:
    """The commonest confusions of two classes: what is true, what was predicted, how often, share
    of the true class."""
    (predicted, true), background = counted.cells.T, counted.num_classes
    total = np.bincount(true, counted.counts, background + 1)
    inner = np.flatnonzero((predicted != true) & (predicted < background) & (true < background))
    order = inner[np.argsort(-counted.counts[inner], kind="stable")[:most]]
    rows = zip(true[order], predicted[order], counted.counts[order], strict=True)
    return [(names[t], names[p], int(count), float(count / total[t])) for t, p, count in rows]
