"""Evidence for tests: a few boxes, or drawn by hypothesis."""

import numpy as np
from hypothesis import strategies as st
from made_labels import labels_of

from boltbox.detector.evaluation.metrics import DetectionMetrics

SIDE = 40  # pixels of the images
NAMES = ["a", "b", "c"]


def evidence_of(images, names=NAMES):
    """For each image its detections (x1, y1, x2, y2, score, class) and labels (x1, y1, x2, y2,
    class)."""
    metrics = DetectionMetrics(len(names))
    for i, (found, labels) in enumerate(images):
        rows = np.array(sorted(found, key=lambda r: -r[4]), np.float32).reshape(-1, 6)
        truth = np.array(labels, float).reshape(-1, 5)
        metrics.update([rows], [labels_of(truth[:, :4], truth[:, 4], SIDE, SIDE)], [i])
    record = metrics.compute().record
    record.names = names
    record.command = "validate"
    record.files = [f"/images/{i}.png" for i in range(len(images))]
    return record


@st.composite
def drawn_evidence(draw):
    """Few places and sizes, so that boxes meet; scores differ."""
    number = st.integers(0, 3)
    corner = st.sampled_from([0, 4, 8, 20])
    side = st.sampled_from([8, 10, 16])
    scores = iter(draw(st.permutations([k / 64 for k in range(1, 40)])))
    images = []
    for _ in range(draw(st.integers(0, 3))):
        boxes = st.tuples(corner, corner, side, side, st.integers(0, 2)).map(
            lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3], b[4])
        )
        labels = draw(st.lists(boxes, max_size=draw(number)))
        found = draw(st.lists(boxes, max_size=6))
        images.append(([(*b[:4], next(scores), b[4]) for b in found], labels))
    return evidence_of(images)
