"""The confusion matrix."""

from collections.abc import Sequence

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
    for side in (0, 1):  # best object of each detection; best of those detections for each object
        pairs = pairs[np.sort(np.unique(pairs[:, side], return_index=True)[1])]
    d, t = pairs.T
    missed, wrong = np.delete(true_classes, t), np.delete(classes, d)
    predicted = classes[d], np.full(len(missed), num_classes), wrong
    true = true_classes[t], missed, np.full(len(wrong), num_classes)
    return np.stack((np.concatenate(predicted), np.concatenate(true)), 1)


def confusion_matrix(pairs: np.ndarray, num_classes: int, kept: Sequence[int]) -> np.ndarray:
    """(k + 1, k + 1) counts of k classes (`kept`), rows predicted, columns true, the last of each
    is background; (k + 2, k + 2) if there are others, which then stand before the background.
    pairs (n, 2): as `confused_pairs` gives them, of all images."""
    position = np.full(num_classes + 1, len(kept))
    position[kept] = np.arange(len(kept))
    position[-1] = background = len(kept) + (~np.isin(pairs, [*kept, num_classes])).any()
    matrix = np.zeros((background + 1, background + 1))
    np.add.at(matrix, tuple(position[pairs].T), 1)
    return matrix


def mistaken_classes(pairs: np.ndarray, num_classes: int) -> list[list[int]]:
    """True class, predicted class, how often, most frequent first; without background."""
    wrong = pairs[(pairs < num_classes).all(1) & (pairs[:, 0] != pairs[:, 1])]
    cells, counts = np.unique(wrong, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return np.column_stack((cells[:, ::-1], counts))[order].tolist()
