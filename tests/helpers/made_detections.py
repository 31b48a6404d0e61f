"""Detections and labels of a few images, made from random numbers."""

import numpy as np
from made_labels import labels_of


def random_set(
    rng,
    images=5,
    classes=3,
    most_objects=5,
    clutter=4,
    crowds=0.0,
    ties=False,
    empty=0.0,
    areas=False,
):
    """Detections and labels of a few images, detections best first.

    Args:
        clutter: most detections that follow no object.
        crowds: share of objects that are crowd regions.
        ties: few different scores.
        empty: share of images without labels, and likewise without detections.
        areas: COCO areas that differ from the boxes' (segments), some at the limits of the sizes.
    """
    detections = []
    truths = []
    for _ in range(images):
        n = 0 if rng.random() < empty else rng.integers(1, most_objects + 1)
        size = np.exp(rng.uniform(np.log(8), np.log(250), (n, 2)))  # on both sides of 32 and 96 px
        low = rng.uniform(0, 300, (n, 2))
        boxes = np.hstack([low, low + size])
        kinds = rng.integers(0, classes, n)
        area = np.where(rng.random(n) < 0.3, 32.0**2, size.prod(1) * rng.uniform(0.2, 1, n))
        area[rng.random(n) < 0.1] = 96**2
        crowd = rng.random(n) < crowds
        truths.append(labels_of(boxes, kinds, 600, 600, None, crowd, area if areas else None))

        copies = np.repeat(np.arange(n), rng.integers(0, 4, n))
        near = boxes[copies] + rng.normal(0, 0.08, (len(copies), 4)) * np.tile(size[copies], 2)
        stray = rng.uniform(0, 500, (rng.integers(0, clutter + 1), 2))
        rows = np.vstack([near, np.hstack([stray, stray + rng.uniform(5, 120, stray.shape)])])
        called = np.concatenate([kinds[copies], rng.integers(0, classes, len(stray))])
        scores = rng.choice([0.2, 0.5, 0.8], len(rows)) if ties else rng.random(len(rows))
        found = np.column_stack([rows, scores, called]).astype(np.float32)
        found = found[np.argsort(-found[:, 4], kind="stable")]
        detections.append(found[:0] if rng.random() < empty else found)
    return detections, truths
