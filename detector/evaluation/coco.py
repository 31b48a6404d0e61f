"""COCO's metrics, equal to pycocotools."""

from typing import NamedTuple

import numpy as np

from boltbox.detector.data.label_table import rank_in_group
from boltbox.detector.evaluation.class_metrics import RECALLS, by_class
from boltbox.detector.evaluation.matching import COCO_THRESHOLDS, by_images, match_as_coco

COCO_NAMES = (
    "AP",
    "AP50",
    "AP75",
    "AP_small",
    "AP_medium",
    "AP_large",
    "AR1",
    "AR10",
    "AR100",
    "AR_small",
    "AR_medium",
    "AR_large",
)
SMALLEST = np.array([0, 0, 32**2, 96**2])  # square pixels: all, small, medium, large
LARGEST = np.array([1e10, 32**2, 96**2, 1e10])
EPS = np.spacing(1)


class Matches(NamedTuple):
    """Of n detections, of which c may be matched, in s size classes.

    Attributes:
        is_size: (n, s) whether the detection has the size.
        rank: (n,) how many of its class and image are more confident.
        row: (n,) its row in `hit` and `ignored`; -1: it matches nothing.
        hit: (c, s, 10) whether it matches an object that counts, for each IoU threshold.
        ignored: (c, s, 10) whether it matches one that does not.
    """

    is_size: np.ndarray
    rank: np.ndarray
    row: np.ndarray
    hit: np.ndarray
    ignored: np.ndarray


def coco_metrics(
    image: np.ndarray,
    rows: np.ndarray,
    label_image: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    max_det: int = 100,
) -> tuple[dict[str, float], np.ndarray]:
    """COCO's twelve metrics.

    Args:
        image: (n,) number of each detection's image, from 0, in ascending order.
        rows: (n, 6) detections: x1, y1, x2, y2, score, class; best first within an image.
        label_image: (m,) number of each label's image.
        labels: (m, 7) x1, y1, x2, y2, class, crowd, area; COCO ignores crowd regions and measures
            sizes by the area.
        num_classes: C.
        max_det: Maximum detections per image and class that count.

    Returns:
        The metrics by COCO_NAMES (NaN where there is no such object), and the AP per class (C,),
        NaN without objects.
    """
    crowd = labels[:, 5] > 0
    counts = _is_size(labels[:, 6]) & ~crowd[:, None]
    matches = _matches(image, rows, label_image, labels, counts, num_classes, max_det)
    label_kind = labels[:, 4].astype(np.int64)
    kinds = np.unique(label_kind)
    precision = np.empty((len(COCO_THRESHOLDS), len(RECALLS), len(kinds), len(SMALLEST)))
    recall = np.empty((len(COCO_THRESHOLDS), len(kinds), len(SMALLEST), 3))
    for k, of_kind in enumerate(by_class(rows[:, 5].astype(np.int64), rows[:, 4], kinds)):
        objects = counts[label_kind == kinds[k]].sum(0)
        precision[:, :, k], recall[:, k] = _curves(matches, of_kind, objects, (1, 10, max_det))
    values = [precision[..., 0], precision[0, ..., 0], precision[5, ..., 0]]
    values += list(np.moveaxis(precision[..., 1:], -1, 0))
    values += list(np.moveaxis(recall[:, :, 0], -1, 0))
    values += list(np.moveaxis(recall[:, :, 1:, 2], -1, 0))
    class_ap = np.full(num_classes, np.nan)
    for k, number in enumerate(kinds):
        class_ap[number] = precision[:, :, k, 0].ravel().mean()
    return dict(zip(COCO_NAMES, map(_mean, values), strict=True)), class_ap


def _matches(
    image: np.ndarray,
    rows: np.ndarray,
    label_image: np.ndarray,
    labels: np.ndarray,
    counts: np.ndarray,
    num_classes: int,
    max_det: int,
) -> Matches:
    """The matches of all images; arguments: see `coco_metrics` and `match_as_coco`."""
    group = image * num_classes + rows[:, 5].astype(np.int64)
    label_group = label_image * num_classes + labels[:, 4].astype(np.int64)
    crowd = labels[:, 5] > 0
    is_size = np.empty((len(rows), len(SMALLEST)), bool)
    rank = np.empty(len(rows), np.int32)
    parts = []
    for d, t in by_images(image, label_image):
        boxes = _xywh(rows[d])
        is_size[d] = _is_size(boxes[:, 2:].prod(1))
        rank[d] = rank_in_group(group[d])
        kept = np.flatnonzero(rank[d] < max_det)
        found, hit, ignored = match_as_coco(
            boxes[kept], group[d][kept], _xywh(labels[t]), label_group[t], counts[t], crowd[t]
        )
        parts.append((d.start + kept[found], hit, ignored))
    candidates, hit, ignored = map(np.concatenate, zip(*parts, strict=True))
    row = np.full(len(rows), -1, np.int32)
    row[candidates] = np.arange(len(candidates))
    return Matches(is_size, rank, row, hit, ignored)


def _curves(
    matches: Matches, detections: np.ndarray, objects: np.ndarray, limits: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall of a class.

    Args:
        matches: Of all classes.
        detections: Numbers of the class's detections, most confident first.
        objects: (s,) number of its objects that count in each size class.
        limits: Maximum detections per image, the largest last.

    Returns:
        (10, 101, s) precision by IoU threshold and recall, with the largest limit, and (10, s, l)
        recall; NaN where there is no object.
    """
    _, rank, row, hit, ignored = matches
    detections = detections[rank[detections] < limits[-1]]
    place = np.flatnonzero(row[detections] >= 0)
    r = row[detections[place]]
    # detections that count up to each: those of the size, but for what they were matched with
    in_size = matches.is_size[detections]
    change = (hit[r] | in_size[place, :, None] & ~ignored[r]).astype(np.int8)
    change -= in_size[place, :, None]
    counted = in_size.cumsum(0)[place, :, None] + change.cumsum(0)
    thresholds = len(COCO_THRESHOLDS)
    precision = np.full((thresholds, len(RECALLS), len(objects)), np.nan)
    recall = np.full((thresholds, len(objects), len(limits)), np.nan)
    for size in np.flatnonzero(objects):
        for m, limit in enumerate(limits):
            is_first = rank[detections[place]] < limit
            recall[:, size, m] = hit[r[is_first], size].sum(0) / objects[size]
        for i in range(thresholds):
            numbers = counted[hit[r, size, i], size, i]
            precision[i, :, size] = _precision(numbers, objects[size])
    return precision, recall


def _is_size(area: np.ndarray) -> np.ndarray:
    """(n,) areas -> (n, 4) bool: all, small, medium, large."""
    area = area[:, None].astype(float)
    return (area >= SMALLEST) & (area <= LARGEST)


def _xywh(rows: np.ndarray) -> np.ndarray:
    """(n, >= 4) rows that begin with corners -> (n, 4) float64 left, top, width, height."""
    corner, opposite = np.split(rows[:, :4].astype(float), 2, 1)
    return np.concatenate((corner, opposite - corner), 1)


def _precision(counted: np.ndarray, objects: int) -> np.ndarray:
    """(h,) number of detections up to each true positive -> (101,) the best precision at each
    recall or more."""
    true_positives = np.arange(1, len(counted) + 1)
    best = np.maximum.accumulate((true_positives / (counted + EPS))[::-1])[::-1]
    return np.append(best, 0)[np.searchsorted(true_positives / objects, RECALLS)]


def _mean(values: np.ndarray) -> float:
    """Of those that are not NaN."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan
