"""Detections matched with objects, against a loop that follows the definition pair by pair; limits
of the confusion matrix."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from overlaps import overlap

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


def slow_match(boxes, classes, true_boxes, true_classes):
    """Specification 5.4, sentence by sentence."""
    hits = np.zeros((len(boxes), 10), bool)
    for k in range(10):
        pairs = []
        for d in range(len(boxes)):
            for t in range(len(true_boxes)):
                iou = overlap(boxes[d], true_boxes[t], np.float32(1e-7))
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
