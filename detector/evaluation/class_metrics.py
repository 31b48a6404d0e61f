"""YOLOv5's metrics: matching, precision, recall, average precision. Boxes are xyxy pixels of the
image files, in NumPy."""

from dataclasses import dataclass

import numpy as np

from boltbox.detector.model.boxes import pairwise_iou_xyxy

# float32, as in YOLOv5: 0.55, 0.65, ... differ from float64
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10, dtype=np.float32)
CONFIDENCES = np.linspace(0, 1, 1000)  # confidences at which precision and recall are read
RECALLS = np.linspace(0, 1, 101)  # recalls at which precision is read
DEFAULT_CONFIDENCE = 0.25  # of a class without a true positive
EPS = 1e-16


def match(
    boxes: np.ndarray, classes: np.ndarray, true_boxes: np.ndarray, true_classes: np.ndarray
) -> np.ndarray:
    """Which detections of one image are true positives, as YOLOv5 decides it.

    A detection is matched with the object of its class that it overlaps most, and with no other. Of
    several detections matched with one object the first, which is the most confident, is the true
    positive.

    Args:
        boxes: (n, 4) detections, most confident first.
        classes: (n,) their classes.
        true_boxes: (m, 4) objects.
        true_classes: (m,) their classes.

    Returns:
        (n, 10) bool, for the IoU thresholds 0.50, 0.55, ..., 0.95.
    """
    true_positives = np.zeros((len(boxes), len(IOU_THRESHOLDS)), bool)
    if not len(boxes) or not len(true_boxes):
        return true_positives
    iou = pairwise_iou_xyxy(boxes, true_boxes)
    iou[classes[:, None] != true_classes] = -1
    object_of = iou.argmax(1)  # (n,)
    overlap = iou.max(1)  # (n,)
    for k, threshold in enumerate(IOU_THRESHOLDS):
        candidates = np.flatnonzero(overlap >= threshold)
        _, first = np.unique(object_of[candidates], return_index=True)  # best per object
        true_positives[candidates[first], k] = True
    return true_positives


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


def precision_at_recall(recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The curve whose area by trapezoids is the AP; the report, W&B and TensorBoard draw it.

    Its value is the best precision at that recall or more, linear between the points, from 1 at
    recall 0 to 0 at recall 1, as in YOLOv5. COCO averages the 101 values of a step function
    instead, which is usually a little less.

    Args:
        recall: (n,) after each detection, most confident first.
        precision: (n,) likewise.

    Returns:
        (101,) precision at RECALLS.
    """
    r = np.concatenate(([0.0], recall, [1.0]))
    p = np.concatenate(([1.0], precision, [0.0]))
    envelope = np.maximum.accumulate(p[::-1])[::-1]
    return np.interp(RECALLS, r, envelope)


def class_metrics(
    true_positives: np.ndarray, scores: np.ndarray, classes: np.ndarray, true_classes: np.ndarray
) -> ClassMetrics:
    """Precision, recall and AP per class from the matches of a whole dataset.

    Ties in score keep their order.

    Args:
        true_positives: (n, 10) as `match` returns them, of all detections in any order.
        scores: (n,) their scores.
        classes: (n,) their classes.
        true_classes: (m,) classes of all objects.
    """
    order = np.argsort(-scores, kind="stable")
    true_positives = true_positives[order]
    scores = scores[order]
    classes = classes[order]
    present, objects = np.unique(true_classes.astype(int), return_counts=True)
    k = len(present)
    ap = np.zeros((k, true_positives.shape[1]))
    precision_curve = np.zeros((k, len(CONFIDENCES)))
    recall_curve = np.zeros((k, len(CONFIDENCES)))
    at_recall = np.zeros((k, len(RECALLS)))
    for i in range(k):
        of_class = classes == present[i]
        if not of_class.any():
            continue
        tp = true_positives[of_class].cumsum(0)  # (n_c, 10)
        fp = (~true_positives[of_class]).cumsum(0)
        recall = tp / (objects[i] + EPS)
        precision = tp / (tp + fp)
        recall_curve[i] = np.interp(-CONFIDENCES, -scores[of_class], recall[:, 0], left=0)
        precision_curve[i] = np.interp(-CONFIDENCES, -scores[of_class], precision[:, 0], left=1)
        curves = [precision_at_recall(r, p) for r, p in zip(recall.T, precision.T, strict=True)]
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


def _smooth(y: np.ndarray, fraction: float = 0.1) -> np.ndarray:
    """Moving mean over a fraction of the curve (an odd number of points), ends padded."""
    window = round(len(y) * fraction * 2) // 2 + 1
    padded = np.pad(y, window // 2, mode="edge")
    return np.convolve(padded, np.ones(window) / window, mode="valid")
