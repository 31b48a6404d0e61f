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
    skip_unmatched: bool = False,
) -> np.ndarray:
    """What was predicted for what in one image: (n, 2) int64 predicted and true class, where
    `num_classes` is background.

    Detections above `conf` and objects are paired one to one by overlap above `iou`, whatever their
    class.

    Args:
        skip_unmatched: YOLOv5's way: leave out false positives in images where nothing matches.
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
    missed = np.delete(true_classes, t)
    wrong = np.delete(classes, d) if len(pairs) or not skip_unmatched else classes[:0]
    background = np.full(len(missed) + len(wrong), num_classes)
    predicted = np.concatenate((classes[d], background[: len(missed)], wrong))
    return np.stack(
        (predicted, np.concatenate((true_classes[t], missed, background[len(missed) :]))), 1
    )


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
        rows, columns = position[self.cells].T
        matrix = np.zeros((k + 2, k + 2))
        np.add.at(matrix, (rows, columns), self.counts)
        others = k in rows or k in columns
        return matrix if others else np.delete(np.delete(matrix, k, 0), k, 1)

    def commonest_classes(self, most: int) -> list[int]:
        """The classes with most objects and detections, in ascending order; none without any."""
        off_diagonal = self.cells[:, 0] != self.cells[:, 1]
        seen = np.bincount(self.cells[:, 1], self.counts, self.num_classes + 1)
        seen += np.bincount(
            self.cells[off_diagonal, 0], self.counts[off_diagonal], self.num_classes + 1
        )
        order = np.argsort(-seen[:-1], kind="stable")[:most]
        return sorted(order[seen[order] > 0].tolist())

    def false_positives(self) -> int:
        return int(self.counts[self.cells[:, 1] == self.num_classes].sum())
