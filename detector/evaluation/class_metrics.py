"""YOLOv5's metrics: matching, precision, recall, average precision. Boxes are xyxy pixels of the
image files, in NumPy."""

from dataclasses import dataclass

import numpy as np

from boltbox.detector.model.boxes import pairwise_iou_xyxy

# float32, as in YOLOv5: 0.55, 0.65, ... differ from float64
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10, dtype=np.float32)
CONFIDENCES = np.linspace(0, 1, 1000)  # confidences at which precision and recall are read
RECALLS = np.linspace(0, 1, 101)  # at which precision-recall curves are read
EPS = 1e-16


def match(
    boxes: np.ndarray, classes: np.ndarray, true_boxes: np.ndarray, true_classes: np.ndarray
) -> np.ndarray:
    """Which detections of one image are true positives, YOLOv5's way.

    A detection is matched with the object of its class that it overlaps most, and with no other; of
    several detections matched with one object the first, that is the most confident, is the true
    positive.

    Args:
        boxes (n, 4), classes (n,): detections, most confident first.
        true_boxes (m, 4), true_classes (m,): objects.

    Returns:
        (n, 10) bool, for the IoU thresholds 0.50, 0.55, ..., 0.95.
    """
    true_positives = np.zeros((len(boxes), len(IOU_THRESHOLDS)), bool)
    if len(boxes) and len(true_boxes):
        iou = pairwise_iou_xyxy(boxes, true_boxes)
        iou[classes[:, None] != true_classes] = -1
        choice, overlap = iou.argmax(1), iou.max(1)  # (n,)
        for k, threshold in enumerate(IOU_THRESHOLDS):
            candidates = np.flatnonzero(overlap >= threshold)
            true_positives[candidates[np.unique(choice[candidates], return_index=True)[1]], k] = (
                True
            )
    return true_positives


@dataclass
class ClassMetrics:
    """Metrics of the k classes that have objects. precision, recall (k,) at the confidence of the
    best mean F1; ap (k, 10) by IoU threshold; precision_curve, recall_curve (k, 1000) over
    CONFIDENCES at IoU 0.5; precision_at_recall (k, 101) over RECALLS at IoU 0.5, the curve whose
    area is the AP."""

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
        """P, R, mAP50, mAP50-95 (means over classes) and fitness, the number that picks the best
        checkpoint; all 0 without a true positive."""
        found = self.ap.size > 0 and self.recall_curve.any()
        p, r, ap50, ap = (
            float(x.mean()) if found else 0.0
            for x in (self.precision, self.recall, self.ap[:, :1], self.ap)
        )
        return {"P": p, "R": r, "mAP50": ap50, "mAP50-95": ap, "fitness": 0.1 * ap50 + 0.9 * ap}

    def thresholds(self, num_classes: int) -> list[float]:
        """Of each class the confidence with the best F1, the middle one of several; 0.25 for a
        class without a true positive."""
        found = [0.25] * num_classes
        f1_curves = f1(self.precision_curve, self.recall_curve)
        for number, curve in zip(self.classes.tolist(), f1_curves, strict=True):
            if curve.any():
                found[number] = float(np.median(CONFIDENCES[curve == curve.max()]))
        return found


def f1(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """Their harmonic mean, 0 where both are 0."""
    return 2 * precision * recall / (precision + recall + EPS)


def precision_at_recall(recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """(101,) precision at RECALLS: the best at that recall or more, between the points linear, from
    1 at recall 0 to 0 at recall 1, as in YOLOv5. AP is its area by trapezoids; it is what the
    report, W&B and TensorBoard draw. COCO takes the mean of the 101 values of a step function
    instead, which is usually a little less.

    Args:
        recall (n,), precision (n,): after each detection, most confident first.
    """
    r = np.concatenate(([0.0], recall, [1.0]))
    p = np.concatenate(([1.0], precision, [0.0]))
    envelope = np.maximum.accumulate(p[::-1])[::-1]
    return np.interp(RECALLS, r, envelope)


def class_metrics(
    true_positives: np.ndarray, scores: np.ndarray, classes: np.ndarray, true_classes: np.ndarray
) -> ClassMetrics:
    """Precision, recall and AP of every class from the matches of a whole data set; ties in score
    keep their order.

    Args:
        true_positives (n, 10) as `match` gives them, scores (n,), classes (n,): all detections, in
            any order.
        true_classes (m,): all objects.
    """
    order = np.argsort(-scores, kind="stable")
    true_positives, scores, classes = true_positives[order], scores[order], classes[order]
    present, objects = np.unique(true_classes.astype(int), return_counts=True)
    k = len(present)
    ap = np.zeros((k, true_positives.shape[1]))
    precision_curve, recall_curve = np.zeros((2, k, len(CONFIDENCES)))
    at_recall = np.zeros((k, len(RECALLS)))
    for i, (c, n) in enumerate(zip(present, objects, strict=True)):
        of_class = classes == c
        if not of_class.any():
            continue
        tp = true_positives[of_class].cumsum(0)  # (n_c, 10)
        fp = (~true_positives[of_class]).cumsum(0)
        recall, precision = tp / (n + EPS), tp / (tp + fp)
        recall_curve[i] = np.interp(-CONFIDENCES, -scores[of_class], recall[:, 0], left=0)
        precision_curve[i] = np.interp(-CONFIDENCES, -scores[of_class], precision[:, 0], left=1)
        curves = [precision_at_recall(*pair) for pair in zip(recall.T, precision.T, strict=True)]
        ap[i], at_recall[i] = np.trapezoid(curves, RECALLS), curves[0]
    best = int(_smooth(f1(precision_curve, recall_curve).mean(0)).argmax()) if k else 0
    at_best = precision_curve[:, best], recall_curve[:, best]
    drawn = precision_curve, recall_curve, at_recall
    return ClassMetrics(present, objects, *at_best, ap, *drawn, float(CONFIDENCES[best]))


def _smooth(y: np.ndarray, fraction: float = 0.1) -> np.ndarray:
    """Moving mean over a window of that fraction of the curve (an odd number of points), ends
    padded with the end values."""
    window = round(len(y) * fraction * 2) // 2 + 1
    padded = np.pad(y, window // 2, mode="edge")
    return np.convolve(padded, np.ones(window) / window, mode="valid")
