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
    """Which class was predicted for which class in one image.

    Detections above `conf` and objects are paired one to one by overlap above `iou`, whatever their
    class.

    Args:
        boxes: (n, 4) detections.
        scores: (n,) their scores.
        classes: (n,) their classes.
        true_boxes: (m, 4) objects.
        true_classes: (m,) their classes.
        num_classes: Number of classes, which also stands for the background.
        conf: Minimum confidence of a detection.
        iou: Minimum overlap of a pair.

    Returns:
        (p, 2) int64 predicted and true class.
    """
    certain = scores > conf
    boxes = boxes[certain]
    classes = classes[certain].astype(int)
    true_classes = true_classes.astype(int)
    overlap = pairwise_iou_xyxy(boxes, true_boxes)
    d, t = np.nonzero(overlap > iou)
    pairs = np.stack((d, t), 1)[np.argsort(-overlap[d, t], kind="stable")]
    for side in (0, 1):  # best object of each detection; best of those detections for each object
        _, first = np.unique(pairs[:, side], return_index=True)
        pairs = pairs[np.sort(first)]
    d, t = pairs.T
    missed = np.delete(true_classes, t)
    wrong = np.delete(classes, d)
    predicted = np.concatenate((classes[d], np.full(len(missed), num_classes), wrong))
    true = np.concatenate((true_classes[t], missed, np.full(len(wrong), num_classes)))
    return np.stack((predicted, true), 1)


def confusion_matrix(pairs: np.ndarray, num_classes: int, kept: Sequence[int]) -> np.ndarray:
    """Counts of predicted (rows) and true (columns) classes.

    Args:
        pairs: (n, 2) as `confused_pairs` returns them, of all images.
        num_classes: Number of classes.
        kept: The k classes that have a row each.

    Returns:
        (k + 1, k + 1), where the last row and column are the background. With pairs of other
        classes (k + 2, k + 2), where these stand before the background.
    """
    others = ~np.isin(pairs, np.append(kept, num_classes))
    background = len(kept) + int(others.any())
    position = np.full(num_classes + 1, len(kept))
    position[kept] = np.arange(len(kept))
    position[-1] = background
    matrix = np.zeros((background + 1, background + 1))
    np.add.at(matrix, tuple(position[pairs].T), 1)
    return matrix
