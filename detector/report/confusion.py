"""The confusion matrix as a picture, legible for one class and for thousands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from boltbox.detector.evaluation.metrics import Confusion, confused_pairs
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.report.panel import panel, save

DRAWN = 100  # classes, at most
WRITTEN = 20  # classes up to which the numbers stand in the cells
_NAME = 18  # letters of a class name


def confusion(record: PredictionRecord, skip_unmatched: bool = False) -> Confusion:
    """Of all images, see `metrics.confused_pairs`."""
    classes, pairs = len(record.names), []
    for i in range(len(record.files)):
        d, t = record.detections_of(i), record.labels_of(i)
        found, true = (
            (record.box[d], record.score[d], record.kind[d]),
            (record.label_box[t], record.label_kind[t]),
        )
        pairs.append(confused_pairs(*found, *true, classes, skip_unmatched=skip_unmatched))
    return Confusion.of(pairs, classes)


def normalised(matrix: np.ndarray) -> np.ndarray:
    """Shares of each column, NaN where a column is empty: a class that has no labels."""
    total = matrix.sum(0, keepdims=True)
    return np.where(total > 0, matrix / np.maximum(total, 1), np.nan)


def draw_confusion(counted: Confusion, names: Sequence[str], path: Path) -> Path:
    """Rows are what was predicted, columns what is true, each column in shares; the last row:
    missed, the last column: nothing there. A colour that gets darker all the way tells more and
    less without a hue. Of more than DRAWN classes the commonest are shown, and the others
    together."""
    every = len(names) <= DRAWN
    classes = list(range(len(names))) if every else counted.commonest_classes(DRAWN)
    matrix = counted.matrix(classes)
    shares, n = normalised(matrix), len(matrix)
    shown = [names[c] for c in classes]
    labels = [name if len(name) <= _NAME else name[: _NAME - 1] + "…" for name in shown]
    labels += [*["other classes"] * (n - len(labels) - 1), "background"]
    cell = 0.62 if n <= 7 else 0.42 if n <= WRITTEN + 1 else 0.155
    font = 10 if n <= 7 else 8.5 if n <= WRITTEN + 1 else 6.2
    letters = max(map(len, labels)) * font * 0.0088 + 0.35
    side = max(n * cell, 2.2)
    figure, axis = panel(
        "", wide=side + letters + 1.2, tall=side + letters + 1.1, layout="constrained"
    )
    more = "" if every else f" ({len(classes)} of {len(names)})"
    axis.set_title(
        f"Confusion: shares of each true class{more}", fontsize=12 if n <= WRITTEN + 1 else 15
    )
    axis.grid(visible=False)
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axis.set_xticks(range(n), labels, rotation=90, fontsize=font)
    axis.set_yticks(range(n), labels, fontsize=font)
    axis.set_xlabel("true (background: false positives)", fontsize=11)
    axis.set_ylabel("predicted (background: missed)", fontsize=11)
    for edge in (axis.axhline, axis.axvline):
        edge(n - 1.5, color="0.4", linewidth=1)
    if n > WRITTEN + 1:
        axis.set_xticks(np.arange(n) - 0.5, minor=True)
        axis.set_yticks(np.arange(n) - 0.5, minor=True)
        axis.grid(which="minor", color="0.9", linewidth=0.3)
        axis.tick_params(which="minor", length=0)
    else:
        for y, x in zip(*np.nonzero(matrix), strict=True):
            dark = "white" if shares[y, x] > 0.55 else "black"
            axis.text(
                x,
                y,
                f"{shares[y, x]:.2f}",
                ha="center",
                va="center",
                fontsize=font if n <= 7 else 7,
                color=dark,
            )
    figure.colorbar(image, ax=axis, shrink=0.7, pad=0.02)
    return save(figure, path, tight=True)


def commonest(
    counted: Confusion, names: Sequence[str], most: int = 10
) -> list[tuple[str, str, int, float]]:
    """The commonest confusions of two classes: what is true, what was predicted, how often, share
    of the true class."""
    (predicted, true), background = counted.cells.T, counted.num_classes
    total = np.bincount(true, counted.counts, background + 1)
    inner = np.flatnonzero((predicted != true) & (predicted < background) & (true < background))
    order = inner[np.argsort(-counted.counts[inner], kind="stable")[:most]]
    return [
        (
            names[true[k]],
            names[predicted[k]],
            int(counted.counts[k]),
            float(counted.counts[k] / total[true[k]]),
        )
        for k in order
    ]
