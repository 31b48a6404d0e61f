"""The confusion matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from boltbox.detector.model.boxes import pairwise_iou_xyxy


def confused_pairs(
    boxes: np.ndarray,
    scores: np.ndarray,
    classes: np.ndarray,
    true_boxes: np.ndarray,
    true_classes: np.ndarray,
    num_classes: int,
    conf: float = 0.25,
    iou: float = 0.45,
) -> np.ndarray:
    """What was predicted for what in one image: (n, 2) int64 predicted and true class, where
    `num_classes` is background.

    Detections above `conf` and objects are paired one to one by overlap above `iou`, whatever their
    class.
    """
    certain = scores > conf
    boxes, classes = boxes[certain], classes[certain].astype(int)
    true_classes = true_classes.astype(int)
    overlap = pairwise_iou_xyxy(boxes, true_boxes)
    d, t = np.nonzero(overlap > iou)
    pairs = np.stack((d, t), 1)[np.argsort(-overlap[d, t], kind="stable")]
    # best object of each detection, best pair first
    pairs = pairs[np.sort(np.unique(pairs[:, 0], return_index=True)[1])]
    # best of those detections for each object
    pairs = pairs[np.unique(pairs[:, 1], return_index=True)[1]]
    d, t = pairs.T
    missed, wrong = np.delete(true_classes, t), np.delete(classes, d)
    predicted = classes[d], np.full(len(missed), num_classes), wrong
    true = true_classes[t], missed, np.full(len(wrong), num_classes)
    return np.stack((np.concatenate(predicted), np.concatenate(true)), 1)


@dataclass
class Confusion:
    """The confusion matrix by its cells that are not 0: cells (m, 2) int64 predicted and true class
    in ascending order, counts (m,) int64. Class `num_classes` is background."""

    cells: np.ndarray
    counts: np.ndarray
    num_classes: int

    @classmethod
    def of(cls, pairs: Iterable[np.ndarray], num_classes: int) -> Confusion:
        """Pairs: as `confused_pairs` gives them, by image."""
        everything = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
        return cls(*np.unique(everything, axis=0, return_counts=True), num_classes)

    def matrix(self, classes: Sequence[int] | None = None) -> np.ndarray:
        """(k + 1, k + 1) counts of k classes, rows predicted, columns true, the last of each is
        background; (k + 2, k + 2) if there are counts of others, which then stand before the
        background. Default: all classes."""
        kept = list(range(self.num_classes) if classes is None else classes)
        k = len(kept)
        position = np.full(self.num_classes + 1, k)
        position[kept], position[-1] = np.arange(k), k + 1
        matrix = np.zeros((k + 2, k + 2))
        np.add.at(matrix, tuple(position[self.cells].T), self.counts)
        others = matrix[k].any() or matrix[:, k].any()
        return matrix if others else np.delete(np.delete(matrix, k, 0), k, 1)

    def commonest_classes(self, most: int) -> list[int]:
        """The classes with most objects and detections, in ascending order; none without any."""
        seen = np.bincount(self.cells.ravel(), self.counts.repeat(2), self.num_classes + 1)[:-1]
        order = np.argsort(-seen, kind="stable")[:most]
        return sorted(order[seen[order] > 0].tolist())

    def named(self, names: Sequence[str], most: int = 10_000) -> list[tuple[str, str, int]]:
        """Cells as (true class, predicted class, count), most frequent first. An object that was
        not found is predicted as background, a detection of nothing is truly background."""
        order = np.argsort(-self.counts, kind="stable")[:most]
        cells, words = self.cells[order].tolist(), [*names, "background"]
        rows = zip(cells, self.counts[order].tolist(), strict=True)
        return [(words[true], words[predicted], count) for (predicted, true), count in rows]
