"""Decoding and non-maximum suppression, against loops over cells and over all pairs of
candidates."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from overlaps import overlap

from boltbox.detector.model import postprocess
from boltbox.detector.model.postprocess import nms


def slow_nms(
    rows,
    conf,
    iou,
    max_det,
    multi_label,
    agnostic=False,
    classes=None,
    limit=30_000,
):
    """One image, one full pass: (x1, y1, x2, y2, score, class), best first. Exact for the numbers
    of these tests."""
    candidates = []
    for cx, cy, w, h, objectness, *likely in rows:
        scores = [objectness * s for s in likely]
        for c, s in enumerate(scores):
            is_chosen = multi_label or c == scores.index(max(scores))
            is_asked_for = classes is None or c in classes
            if objectness > conf and s > conf and is_chosen and is_asked_for:
                candidates.append((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2, s, c))
    candidates.sort(key=lambda found: -found[4])
    kept = []
    for one in candidates[:limit]:
        if all(overlap(one, other) <= iou for other in kept if agnostic or other[5] == one[5]):
            kept.append(one)
    return kept[:max_det]


def as_tuples(found):
    columns = (found.boxes.tolist(), found.scores.tolist(), found.classes.tolist())
    return [tuple(b) + (s, c) for b, s, c in zip(*columns, strict=True)]


# Whole pixels and eighths: no rounding anywhere, and plenty of ties in score and of overlaps
# exactly at the threshold.
eighths = st.integers(0, 8).map(lambda n: n / 8)
boxes = st.tuples(*[st.integers(0, 6).map(float)] * 2, *[st.sampled_from([2.0, 4.0, 6.0])] * 2)


@st.composite
def images(draw):
    """A batch of two images: rows as `decode` gives them, as many in each."""
    num_classes = draw(st.integers(1, 3))
    n = draw(st.integers(1, 20))
    row = st.tuples(boxes, st.tuples(*[eighths] * (1 + num_classes))).map(
        lambda r: list(r[0] + r[1])
    )
    rows = st.lists(row, min_size=n, max_size=n)
    return [draw(rows), draw(rows)]


OPTIONS = {
    "conf": st.sampled_from([0.001, 0.125, 0.25]),
    "iou": st.sampled_from([0.0, 0.25, 0.5, 0.6]),
    "max_det": st.sampled_from([1, 2, 5, 300]),
    "multi_label": st.booleans(),
    "agnostic": st.booleans(),
    "classes": st.none() | st.lists(st.integers(0, 3), max_size=2),
}


@settings(max_examples=100)
@given(images(), st.fixed_dictionaries(OPTIONS))
def test_nms_is_the_full_pass(rows, options):
    expected = [slow_nms(r, **options) for r in rows]
    decoded = torch.tensor(rows)
    assert list(map(as_tuples, nms(decoded, **options))) == expected
    assert torch.equal(decoded, torch.tensor(rows)), "the input stays as it is"


def flood(seed, rows, classes):
    """(1, rows, 5 + classes) of overlapping boxes, nearly all of them candidates, with ties in
    score."""
    rng = torch.Generator().manual_seed(seed)
    decoded = torch.rand(1, rows, 5 + classes, generator=rng)
    decoded[..., :2] *= 640
    decoded[..., 2:4] = decoded[..., 2:4] * 100 + 20
    decoded[..., 4:] = (decoded[..., 4:] * 4).ceil() / 4
    return decoded


def test_only_the_best_candidates_take_part(monkeypatch):
    """With ties across the limit: the earlier rows are in."""
    rows = flood(1, rows=200, classes=2)
    rows[..., :4] = rows[..., :4].round() * 2
    for limit in (1, 30, 100):
        monkeypatch.setattr(postprocess, "MAX_CANDIDATES", limit)
        (found,) = nms(rows, 0.001, 0.1, 300)
        assert as_tuples(found) == slow_nms(rows[0].tolist(), 0.001, 0.1, 300, True, limit=limit)


@pytest.mark.parametrize("multi_label", [False, True])
def test_nothing_and_no_numbers(multi_label):
    """No rows, none above the confidence, or scores of NaN."""
    for rows, value in ((0, 0.0), (5, 0.01), (5, math.nan)):
        (found,) = nms(torch.full((1, rows, 8), value), conf=0.25, multi_label=multi_label)
        assert (found.boxes.shape, found.scores.shape) == ((0, 4), (0,))
        assert found.classes.dtype == torch.int64
    decoded = torch.ones(1, 1, 8)
    decoded[..., 6] = math.nan  # a class that is NaN does not take the others with it
    (found,) = nms(decoded)
    assert len(found.scores) == 2


def test_classes_far_apart_do_not_touch():
    """The same box in each of 1000 classes is kept 1000 times, also at coordinates below 0 and far
    from 0."""
    corner = torch.tensor([[-50_000.0, 3.0, 7.3, 1e5, 1.0], [70_000.0, 3.0, 7.3, 1e5, 1.0]])
    row = torch.cat((corner, torch.ones(2, 1000)), 1)
    (found,) = nms(row[None], max_det=5000)
    assert found.classes.bincount().tolist() == [2] * 1000
