"""Detections matched with objects, against a loop that follows the definition pair by pair; limits
of the confusion matrix."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from boltbox.detector.evaluation.confusion import confused_pairs
from boltbox.detector.evaluation.matching import match

# Boxes on a coarse lattice overlap, coincide and tie often.
corner = st.integers(0, 5)
side = st.integers(1, 4)
box = st.tuples(corner, corner, side, side).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
objects = st.lists(st.tuples(box, st.integers(0, 2)), max_size=7)


def columns(rows):
    """Drawn objects -> (n, 4) float32 boxes, (n,) classes."""
    return np.array([b for b, _ in rows], np.float32).reshape(-1, 4), np.array(
        [c for _, c in rows], np.int64
    )


def overlap(a, b):
    """Intersection over union of two float32 boxes, one step at a time."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, np.float32(0)) * max(height, np.float32(0))
    return shared / (
        (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared + np.float32(1e-7)
    )


def slow_match(boxes, classes, true_boxes, true_classes):
    """Specification 5.4, sentence by sentence."""
    hits = np.zeros((len(boxes), 10), bool)
    for k in range(10):
        pairs = []
        for d in range(len(boxes)):
            for t in range(len(true_boxes)):
                iou = overlap(boxes[d], true_boxes[t])
                if classes[d] == true_classes[t] and iou >= np.float32(0.5 + 0.05 * k):
                    pairs.append((iou, d, t))
        pairs.sort(key=lambda pair: -pair[0])  # by overlap, descending
        best = {}
        for _, d, t in pairs:
            best.setdefault(d, t)  # per detection its best pair
        taken = set()
        for d in sorted(best):  # per label the first in detection order
            if best[d] not in taken:
                hits[d, k] = True
                taken.add(best[d])
    return hits


@settings(max_examples=200)
@given(objects, objects)
def test_match_is_the_specified_loop(found, true):
    arguments = (*columns(found), *columns(true))
    assert np.array_equal(match(*arguments), slow_match(*arguments))


def test_match_gives_no_second_choice():
    """Both detections prefer the first object; the surer one gets it although it overlaps less, the
    other one gets nothing."""
    true = np.array([[0, 0, 10, 10], [3, 0, 13, 10]], np.float32)
    found = np.array([[1, 0, 11, 10], [0, 0, 10, 10]], np.float32)  # overlaps .82 .67 and 1 .54
    hits = match(found, np.zeros(2), true, np.zeros(2))
    assert hits[:, 0].tolist() == [True, False]
    assert hits[:, 9].tolist() == [False, True], "at 0.95 the surer one is no candidate"


def test_confusion_matrix_thresholds():
    """Both are strict."""
    found = np.array([[0, 0, 10, 10]], np.float32)
    true = np.array([[0, 0, 10, 20]], np.float32)  # overlap 1/2
    for limits, pairs in (
        ({}, [[0, 1]]),
        ({"conf": 0.5}, [[2, 1]]),
        ({"iou": 0.5}, [[2, 1], [0, 2]]),
    ):
        counted = confused_pairs(found, np.array([0.5]), np.zeros(1), true, np.ones(1), 2, **limits)
        assert counted.tolist() == pairs
