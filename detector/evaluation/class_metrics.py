"""YOLOv5's metrics: precision, recall, average precision."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

CONFIDENCES = np.linspace(0, 1, 1000)  # confidences at which precision and recall are read
RECALLS = np.linspace(0, 1, 101)  # recalls at which precision is read
DEFAULT_CONFIDENCE = 0.25  # of a class without a true positive
EPS = 1e-16


@dataclass
class ClassMetrics:
    """Metrics of the k classes that have objects.

    Attributes:
        classes: (k,) class numbers.
        objects: (k,) number of objects.
        precision: (k,) at the confidence of the best mean F1.
        recall: (k,) likewise.
        ap: (k, 10) average precision by IoU threshold.
        precision_curve: (k, 1000) over CONFIDENCES at IoU 0.5.
        recall_curve: (k, 1000) likewise.
        precision_at_recall: (k, 101) over RECALLS at IoU 0.5, the curve whose area is the AP.
        best_confidence: Confidence of the best mean F1.
    """

    classes: np.ndarray
    objects: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    ap: np.ndarray
    precision_curve: np.ndarray
    recall_curve: np.ndarray
    precision_at_recall: np.ndarray
    best_confidence: float

    def summary(self) -> dict[str, float]:
        """Means over classes: P, R, mAP50, mAP50-95, and fitness, which picks the best checkpoint.

        All are 0 without a true positive.
        """
        if not self.recall_curve.any():
            return dict.fromkeys(("P", "R", "mAP50", "mAP50-95", "fitness"), 0.0)
        map50 = float(self.ap[:, 0].mean())
        map50_95 = float(self.ap.mean())
        return {
            "P": float(self.precision.mean()),
            "R": float(self.recall.mean()),
            "mAP50": map50,
            "mAP50-95": map50_95,
            "fitness": 0.1 * map50 + 0.9 * map50_95,
        }

    def thresholds(self, num_classes: int) -> list[float]:
        """Confidence of the best F1 per class, the median of several."""
        thresholds = [DEFAULT_CONFIDENCE] * num_classes
        f1_curves = f1(self.precision_curve, self.recall_curve)
        for number, curve in zip(self.classes.tolist(), f1_curves, strict=True):
            if curve.any():
                thresholds[number] = float(np.median(CONFIDENCES[curve == curve.max()]))
        return thresholds


def f1(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """Harmonic mean, 0 where both are 0."""
    return 2 * precision * recall / (precision + recall + EPS)


def precision_at_recall(true_positives: np.ndarray, objects: int) -> np.ndarray:
    """The curve whose area by trapezoids is the AP; the report, W&B and TensorBoard draw it.

    Its value is the best precision at that recall or more, falling in a line from the last
    detection to 0 at recall 1, as in YOLOv5. COCO averages the 101 values of a step function
    instead, which is usually a little less.

    Args:
        true_positives: (n,) bool, most confident first.
        objects: Their number.

    Returns:
        (101,) precision at RECALLS.
    """
    rank = np.flatnonzero(true_positives) + 1
    found = np.arange(1, len(rank) + 1)
    best = np.maximum.accumulate((found / rank)[::-1])[::-1]
    recall = found / (objects + EPS)
    last = recall[-1] if len(recall) else 0
    curve = np.interp(RECALLS, (last, 1), (len(found) / len(true_positives), 0))
    next_found = np.searchsorted(recall, RECALLS, "right")  # true positive
    is_before = next_found < len(found)
    curve[is_before] = best[next_found[is_before]]
    return curve


def by_class(classes: np.ndarray, scores: np.ndarray, kinds: np.ndarray) -> Iterator[np.ndarray]:
    """The detections of each class, most confident first; ties in score keep their order.

    Args:
        classes: (n,) classes of the detections.
        scores: (n,) their scores.
        kinds: (k,) classes in ascending order.

    Yields:
        Numbers of detections, for one class after the other.
    """
    small = classes.astype(np.min_scalar_type(int(classes.max(initial=0))))  # sorts faster
    order = np.argsort(small, kind="stable")
    first = np.searchsorted(small, kinds, "left", order)
    last = np.searchsorted(small, kinds, "right", order)
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        of_class = order[start:stop]
        yield of_class[np.argsort(-scores[of_class], kind="stable")]


def class_metrics(
    true_positives: np.ndarray, scores: np.ndarray, classes: np.ndarray, true_classes: np.ndarray
) -> ClassMetrics:
    """Precision, recall and AP per class from the matches of a whole dataset.

    Ties in score keep their order.

    Args:
        true_positives: (n, 10) bool as `match` returns them, of all detections in any order.
        scores: (n,) their scores.
        classes: (n,) their classes.
        true_classes: (m,) classes of all objects.
    """
    present, objects = np.unique(true_classes.astype(int), return_counts=True)
    k = len(present)
    ap = np.zeros((k, true_positives.shape[1]))
    precision_curve = np.zeros((k, len(CONFIDENCES)))
    recall_curve = np.zeros((k, len(CONFIDENCES)))
    at_recall = np.zeros((k, len(RECALLS)))
    for i, of_class in enumerate(by_class(classes, scores, present)):
        if not len(of_class):
            continue
        tp = true_positives[of_class]  # (n_c, 10)
        found = tp[:, 0].cumsum()
        recall = found / (objects[i] + EPS)
        precision = found / np.arange(1, len(tp) + 1)
        recall_curve[i] = np.interp(-CONFIDENCES, -scores[of_class], recall, left=0)
        precision_curve[i] = np.interp(-CONFIDENCES, -scores[of_class], precision, left=1)
        curves = [precision_at_recall(hits, objects[i]) for hits in tp.T]
        ap[i] = np.trapezoid(curves, RECALLS)
        at_recall[i] = curves[0]
    best = 0
    if k:
        mean_f1 = f1(precision_curve, recall_curve).mean(0)
        best = int(_smooth(mean_f1).argmax())
    return ClassMetrics(
        classes=present,
        objects=objects,
        precision=precision_curve[:, best],
        recall=recall_curve[:, best],
        ap=ap,
        precision_curve=precision_curve,
        recall_curve=recall_curve,
        precision_at_recall=at_recall,
        best_confidence=float(CONFIDENCES[best]),
    )


def _smooth(y: np.ndarray) -> np.ndarray:
    """Moving mean over a tenth of the curve (an odd number of points), ends padded."""
    window = len(y) // 10 + 1
    padded = np.pad(y, window // 2, mode="edge")
    return np.convolve(padded, np.ones(window) / window, mode="valid")
