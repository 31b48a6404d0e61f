"""How good detections are: YOLOv5's metrics, COCO's metrics, the confusion matrix.

Functions first; `DetectionMetrics` collects an epoch and calls them. Boxes are xyxy pixels of the
image files, in NumPy.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.distributed as dist

from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import clip_xyxy, pairwise_iou_xyxy
from boltbox.detector.system.garbage import without_garbage_collection

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
        choice = iou.argmax(1)  # (n,)
        overlap = iou[np.arange(len(boxes)), choice]
        for k, threshold in enumerate(IOU_THRESHOLDS):
            candidates = np.flatnonzero(overlap >= threshold)
            true_positives[candidates[np.unique(choice[candidates], return_index=True)[1]], k] = (
                True
            )
    return true_positives


@dataclass
class ClassMetrics:
    """Metrics of the k classes that have objects. precision, recall, f1, true_positives,
    false_positives (k,) at the confidence of the best mean F1; ap (k, 10) by IoU threshold;
    precision_curve, recall_curve (k, 1000) over CONFIDENCES at IoU 0.5; precision_at_recall (k,
    101) over RECALLS at IoU 0.5, the curve whose area is the AP."""

    classes: np.ndarray
    objects: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    true_positives: np.ndarray
    false_positives: np.ndarray
    ap: np.ndarray
    precision_curve: np.ndarray
    recall_curve: np.ndarray
    precision_at_recall: np.ndarray
    best_confidence: float

    def summary(self) -> dict[str, float]:
        """P, R, mAP50, mAP50-95 (means over classes) and fitness; all 0 without a true positive."""
        found = self.ap.size > 0 and self.recall_curve.any()
        p, r, ap50, ap = (
            float(x.mean()) if found else 0.0
            for x in (self.precision, self.recall, self.ap[:, :1], self.ap)
        )
        return {"P": p, "R": r, "mAP50": ap50, "mAP50-95": ap, "fitness": fitness(ap50, ap)}


def fitness(map50: float, map50_95: float) -> float:
    """The one number that picks the best checkpoint: 0.1 mAP50 + 0.9 mAP50-95."""
    return 0.1 * map50 + 0.9 * map50_95


def precision_at_recall(recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """(101,) precision at RECALLS: the best at that recall or more, between the points linear, from
    1 at recall 0 to 0 at recall 1, as in YOLOv5. It is what AP is the area of and what the report,
    W&B and TensorBoard draw.

    Args:
        recall (n,), precision (n,): after each detection, most confident first.
    """
    r = np.concatenate(([0.0], recall, [1.0]))
    p = np.concatenate(([1.0], precision, [0.0]))
    envelope = np.maximum.accumulate(p[::-1])[::-1]
    return np.interp(RECALLS, r, envelope)


def average_precision(recall: np.ndarray, precision: np.ndarray) -> float:
    """Area under `precision_at_recall`, by trapezoids, as in YOLOv5.

    COCO takes the mean of the 101 values of a step function instead, which is usually a little
    less.
    """
    return float(np.trapezoid(precision_at_recall(recall, precision), RECALLS))


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
    precision_curve, recall_curve = np.zeros((k, len(CONFIDENCES))), np.zeros((k, len(CONFIDENCES)))
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
        ap[i] = [average_precision(recall[:, j], precision[:, j]) for j in range(ap.shape[1])]
        at_recall[i] = precision_at_recall(recall[:, 0], precision[:, 0])
    f1_curve = 2 * precision_curve * recall_curve / (precision_curve + recall_curve + EPS)
    best = int(_smooth(f1_curve.mean(0)).argmax()) if k else 0
    precision, recall, f1 = precision_curve[:, best], recall_curve[:, best], f1_curve[:, best]
    found = (recall * objects).round()
    return ClassMetrics(
        classes=present,
        objects=objects,
        precision=precision,
        recall=recall,
        f1=f1,
        true_positives=found,
        false_positives=(found / (precision + EPS) - found).round(),
        ap=ap,
        precision_curve=precision_curve,
        recall_curve=recall_curve,
        precision_at_recall=at_recall,
        best_confidence=float(CONFIDENCES[best]),
    )


def _smooth(y: np.ndarray, fraction: float = 0.1) -> np.ndarray:
    """Moving mean over a window of that fraction of the curve (an odd number of points), ends
    padded with the end values."""
    window = round(len(y) * fraction * 2) // 2 + 1
    padded = np.concatenate((np.full(window // 2, y[0]), y, np.full(window // 2, y[-1])))
    return np.convolve(padded, np.ones(window) / window, mode="valid")


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


COCO_NAMES = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large"),
)
# square pixels, both ends included
COCO_AREAS = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, np.inf)}


def coco_metrics(
    detections: list[np.ndarray], truths: list[Labels], num_classes: int, max_det: int = 100
) -> tuple[dict[str, float], np.ndarray]:
    """COCO's twelve metrics, equal to pycocotools. Only classes with labels are evaluated: the
    others do not count.

    Args:
        detections: per image (n, 6) x1, y1, x2, y2, score, class.
        truths: per image Labels; crowd regions are ignored as COCO says, sizes go by `area`.
        max_det: most detections an image that count.

    Returns:
        The metrics by COCO_NAMES (NaN where there is no such object), and AP by class (C,), NaN
            without objects.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    annotations: list[dict[str, Any]] = []
    results = []
    for i, (found, truth) in enumerate(zip(detections, truths, strict=True)):
        for box, c, crowd, area in zip(
            truth.boxes, truth.classes, truth.crowd, truth.area, strict=True
        ):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": i,
                    "category_id": int(c),
                    "bbox": [
                        *box[:2].tolist(),
                        *(box[2:].astype(float) - box[:2].astype(float)).tolist(),
                    ],
                    "area": float(area),
                    "iscrowd": int(crowd),
                }
            )
        f = found.astype(float)
        results.append(
            np.column_stack([np.full(len(f), i), f[:, :2], f[:, 2:4] - f[:, :2], f[:, 4], f[:, 5]])
        )
    labelled = sorted({a["category_id"] for a in annotations})
    rows = np.concatenate(results) if results else np.zeros((0, 7))
    rows = rows[np.isin(rows[:, 6], labelled)]
    if not annotations or not len(rows):  # the evaluator wants at least one of each
        real = [a for a in annotations if not a["iscrowd"]]
        present = np.isin(np.arange(num_classes), [a["category_id"] for a in real])
        metrics = {}
        for name in COCO_NAMES:
            low, high = COCO_AREAS.get(name.partition("_")[2], (0, np.inf))
            metrics[name] = 0.0 if any(low <= a["area"] <= high for a in real) else np.nan
        return metrics, np.where(present, 0.0, np.nan)
    with contextlib.redirect_stdout(io.StringIO()), without_garbage_collection():
        truth_set = COCO()
        truth_set.dataset = {
            "info": {},
            "images": [{"id": i} for i in range(len(truths))],
            "annotations": annotations,
            "categories": [{"id": c, "name": str(c)} for c in labelled],
        }
        truth_set.createIndex()
        evaluation = COCOeval_faster(truth_set, truth_set.loadRes(rows), "bbox")
        evaluation.params.maxDets = [1, 10, max_det]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    stats = np.asarray(evaluation.stats[:12], float)
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, 0, -1]  # (IoU, recall, class)
    by_class = np.full(num_classes, np.nan)
    by_class[labelled] = [
        p[p > -1].mean() if (p > -1).any() else np.nan for p in precision.transpose(2, 0, 1)
    ]
    return dict(zip(COCO_NAMES, np.where(stats < 0, np.nan, stats).tolist(), strict=True)), by_class


@dataclass
class Result:
    """An epoch's metrics: `summary` by name, `by_class`, `coco_by_class` (C,), `confusion`; and
    what they were computed from: detections and labels by image, see `DetectionMetrics.update`."""

    summary: dict[str, float]
    by_class: ClassMetrics
    coco_by_class: np.ndarray
    confusion: Confusion
    images: int
    seen: dict[int, tuple[np.ndarray, Labels]] = field(default_factory=dict)

    def class_maps(self, num_classes: int) -> np.ndarray:
        """(C,) mAP50-95 of each class; classes without objects get the mean, as in YOLOv5."""
        maps = np.full(num_classes, self.summary["mAP50-95"])
        maps[self.by_class.classes] = self.by_class.ap.mean(1)
        return maps


@dataclass
class DetectionMetrics:
    """Collects detections and objects by image, so that an image seen twice counts once, and
    evaluates them once an epoch."""

    num_classes: int
    images: dict[int, tuple[np.ndarray, Labels]] = field(default_factory=dict)

    def update(self, index: int, detections: np.ndarray, truth: Labels) -> None:
        """Add an image: its number in the data set; (n, 6) x1, y1, x2, y2, score, class, best
        first; its labels."""
        self.images[index] = (detections, truth)

    def reset(self) -> None:
        self.images = {}

    def gather(self) -> None:
        """Bring the images of all processes to the first one; without a process group there is
        nothing to do."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            parts: list[dict] | None = (
                [{} for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
            )
            dist.gather_object(self.images, parts, dst=0)
            for part in parts or []:
                self.images.update(part)

    def compute(self) -> Result:
        """Evaluate what was collected, in order of image number."""
        detections, truths, pairs = [], [], []
        matched = [np.zeros((0, len(IOU_THRESHOLDS)), bool)]
        for index in sorted(self.images):
            found, truth = self.images[index]
            counted = truth.keep(~truth.crowd)
            true_boxes = clip_xyxy(counted.boxes, truth.width, truth.height)
            matched.append(match(found[:, :4], found[:, 5], true_boxes, counted.classes))
            columns = found[:, :4], found[:, 4], found[:, 5]
            pairs.append(confused_pairs(*columns, true_boxes, counted.classes, self.num_classes))
            detections.append(found)
            truths.append(truth)
        rows = np.concatenate([np.zeros((0, 6), np.float32), *detections])
        true_classes = np.concatenate(
            [np.zeros(0, np.int64), *(t.classes[~t.crowd] for t in truths)]
        )
        by_class = class_metrics(np.concatenate(matched), rows[:, 4], rows[:, 5], true_classes)
        coco, coco_by_class = coco_metrics(detections, truths, self.num_classes)
        summary = by_class.summary() | {f"coco/{name}": value for name, value in coco.items()}
        seen = {index: self.images[index] for index in sorted(self.images)}
        confusion = Confusion.of(pairs, self.num_classes)
        return Result(summary, by_class, coco_by_class, confusion, len(truths), seen)
