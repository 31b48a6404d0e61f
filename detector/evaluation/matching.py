"""Which detections are true positives, as YOLOv5 decides it and as COCO does.

Both compare a detection with the objects of its group only: those of its class in its image. Groups
are numbers.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from boltbox.detector.data.label_table import first_of_groups, rank_in_group
from boltbox.detector.model.boxes import iou_xyxy

# float32, as in YOLOv5: 0.55, 0.65, ... differ from float64
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10, dtype=np.float32)
COCO_THRESHOLDS = np.linspace(0.5, 0.95, 10)
BLOCK = 250  # images


def by_images(
    image: np.ndarray, label_image: np.ndarray, number: int = BLOCK
) -> Iterator[tuple[slice, slice]]:
    """The detections and the labels of some images after the other.

    Args:
        image: (n,) number of each detection's image from 0, in ascending order.
        label_image: (m,) number of each label's image, likewise.
        number: Of images at a time.
    """
    images = max(image.max(initial=0), label_image.max(initial=0)) + 1
    bounds = np.arange(0, images + number, number)
    detections = pairwise(np.searchsorted(image, bounds).tolist())
    labels = pairwise(np.searchsorted(label_image, bounds).tolist())
    for of_detections, of_labels in zip(detections, labels, strict=True):
        yield slice(*of_detections), slice(*of_labels)


def match(
    boxes: np.ndarray, groups: np.ndarray, true_boxes: np.ndarray, true_groups: np.ndarray
) -> np.ndarray:
    """Which detections are true positives, as YOLOv5 decides it.

    A detection is matched with the object of its group that it overlaps most, and with no other. Of
    several detections matched with one object the first, which is the most confident, is the true
    positive.

    Args:
        boxes: (n, 4) xyxy detections, most confident first.
        groups: (n,) their groups.
        true_boxes: (m, 4) xyxy objects.
        true_groups: (m,) their groups.

    Returns:
        (n, 10) bool, for the IoU thresholds 0.50, 0.55, ..., 0.95.
    """
    detection, target = _pairs(groups, true_groups)
    iou = iou_xyxy(boxes[detection], true_boxes[target])
    near = np.flatnonzero(iou >= IOU_THRESHOLDS[0])
    best_first = near[np.lexsort((-iou[near], detection[near]))]
    best = best_first[first_of_groups(detection[best_first])]
    best = best[np.argsort(target[best], kind="stable")]  # by object, most confident first
    true_positives = np.zeros((len(boxes), len(IOU_THRESHOLDS)), bool)
    for k, threshold in enumerate(IOU_THRESHOLDS):
        matched = best[iou[best] >= threshold]
        first = matched[first_of_groups(target[matched])]
        true_positives[detection[first], k] = True
    return true_positives


def match_as_coco(
    boxes: np.ndarray,
    groups: np.ndarray,
    true_boxes: np.ndarray,
    true_groups: np.ndarray,
    counts: np.ndarray,
    crowd: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which detections are true positives, as COCO decides it for each size class.

    One detection after the other, the most confident first, is matched with the object that it
    overlaps most of those that are left. Objects that count come before those that do not; a crowd
    region is matched with many.

    Args:
        boxes: (n, 4) float64 detections: left, top, width, height. Most confident first.
        groups: (n,) their groups.
        true_boxes: (m, 4) float64 objects, likewise.
        true_groups: (m,) their groups.
        counts: (m, s) whether they count in each size class.
        crowd: (m,) whether they are crowd regions; the IoU with one is the share of the detection
            that is in it.

    Returns:
        (c,) numbers of the detections that may be matched, in ascending order, and whether they
        match an object that counts (c, s, 10), or one that does not (c, s, 10), for the IoU
        thresholds 0.50, 0.55, ..., 0.95.
    """
    detection, target = _pairs(groups, true_groups)
    iou = _coco_iou(boxes[detection], true_boxes[target], crowd[target])
    near = np.flatnonzero(iou >= COCO_THRESHOLDS[0])
    found, candidate = np.unique(detection[near], return_inverse=True)
    turn = rank_in_group(groups[found])
    # of objects with equal IoU the last is the best
    order = np.lexsort((target[near], iou[near], candidate, turn[candidate]))
    candidate = candidate[order]
    target = target[near[order]]
    iou = iou[near[order]]
    states = (counts.shape[1], len(COCO_THRESHOLDS))
    free = np.ones((len(counts),) + states, bool)
    hit = np.zeros((len(found),) + states, bool)
    ignored = np.zeros_like(hit)
    bounds = np.searchsorted(turn[candidate], np.arange(turn.max(initial=-1) + 2))
    for start, stop in pairwise(bounds.tolist()):  # one detection of each group
        objects = target[start:stop]
        pairs = stop - start
        is_open = free[objects] & (iou[start:stop, None, None] >= COCO_THRESHOLDS)
        # from 1; those that count are greater than the number of pairs
        place = np.arange(1, pairs + 1, dtype=np.int32)[:, None] + pairs * counts[objects]
        first = first_of_groups(candidate[start:stop])
        best = np.maximum.reduceat(is_open * place[:, :, None], first)
        of = candidate[start + first]
        hit[of] = best > pairs
        ignored[of] = (best > 0) & (best <= pairs)
        d, size, threshold = np.nonzero(best)
        matched = objects[(best[d, size, threshold] - 1) % pairs]
        free[matched, size, threshold] = crowd[matched]
    return found, hit, ignored


def _pairs(groups: np.ndarray, true_groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of a detection and an object of its group.

    Returns:
        (p,) numbers of detections in ascending order, (p,) numbers of objects.
    """
    order = np.argsort(true_groups, kind="stable")
    first = np.searchsorted(true_groups, groups, "left", order)
    number = np.searchsorted(true_groups, groups, "right", order) - first
    detection = np.arange(len(groups)).repeat(number)
    before = number.cumsum() - number
    return detection, order[np.arange(len(detection)) + (first - before).repeat(number)]


def _coco_iou(a: np.ndarray, b: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """(p, 4) and (p, 4) left, top, width, height -> (p,) intersection over union, for crowd regions
    over the area of a."""
    low = np.maximum(a[:, :2], b[:, :2])
    high = np.minimum(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:])
    overlap = (high - low).clip(0).prod(1)
    area = a[:, 2:].prod(1)
    union = np.where(crowd, area, area + b[:, 2:].prod(1) - overlap)
    return np.divide(overlap, union, out=np.zeros(len(a)), where=overlap > 0)
