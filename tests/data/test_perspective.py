"""Warps: boxes and polygons against a slow loop, labels that follow the pixels, what is left of a
box."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_samples import few, noise, painted, random_boxes, random_sample, seeds, white_box

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.letterbox import GREY
from boltbox.detector.data.transforms.perspective import (
    is_candidate,
    perspective_matrix,
    warp_boxes,
    warp_sample,
)

fractions = st.floats(0, 1, exclude_max=True)
STRONG = {"degrees": 40.0, "translate": 0.2, "scale": 0.5, "shear": 10.0, "perspective": 0.001}


@given(seeds, st.lists(fractions, min_size=8, max_size=8), st.integers(20, 90), st.integers(20, 90))
@few
def test_warp_boxes_against_a_loop_over_corners(
    seed: int, unit: list[float], height: int, width: int
) -> None:
    matrix, _ = perspective_matrix((60, 80), (height, width), np.array(unit), **STRONG)
    boxes = random_boxes(np.random.default_rng(seed), 5, 80, 60)
    polygon = np.array(((5, 5), (50, 10), (20, 55)), np.float32)
    ours = warp_boxes(boxes, [[]] * 4 + [[polygon]], matrix, (height, width))

    def moved(x: float, y: float) -> tuple[float, float]:
        u, v, w = (row[0] * x + row[1] * y + row[2] for row in matrix.tolist())
        return u / w, v / w

    for box, (x1, y1, x2, y2) in zip(ours, boxes[:4].tolist(), strict=False):
        corners = [moved(x, y) for x in (x1, x2) for y in (y1, y2)]
        xs = [min(max(x, 0), width) for x, _ in corners]
        ys = [min(max(y, 0), height) for _, y in corners]
        np.testing.assert_allclose(box, (min(xs), min(ys), max(xs), max(ys)), rtol=0, atol=1e-6)
    # The object with a polygon: the hull of what of its outline stays inside, walked in steps finer
    # than ours.
    outline = []
    for (ax, ay), (bx, by) in zip(polygon.tolist(), np.roll(polygon, -1, 0).tolist(), strict=True):
        outline += [
            moved(ax + (bx - ax) * t / 2000, ay + (by - ay) * t / 2000) for t in range(2000)
        ]
    inside = [(x, y) for x, y in outline if 0 <= x <= width and 0 <= y <= height]
    hull = np.array((*np.min(inside, 0), *np.max(inside, 0))) if inside else np.zeros(4)
    # our points are up to 0.2 px apart, then scaled by up to 1.5
    np.testing.assert_allclose(ours[4], hull, rtol=0, atol=0.7)


@given(seeds, st.integers(20, 90), st.integers(20, 90))
@few
def test_identity_leaves_everything(seed: int, height: int, width: int) -> None:
    sample = random_sample(seed, height, width)
    np.testing.assert_allclose(
        warp_boxes(sample.boxes, sample.polygons, np.eye(3), sample.size),
        sample.boxes,
        rtol=0,
        atol=1e-5,
    )
    sample.boxes[:, 2:] = np.maximum(sample.boxes[:, 2:], sample.boxes[:, :2] + 2.5)
    same = warp_sample(replace(sample, polygons=[[]] * 3), np.eye(3), 1.0, sample.size)
    keep = (sample.boxes[:, 2:] <= (width, height)).all(1)
    assert np.array_equal(same.image, sample.image)
    assert np.array_equal(same.boxes[keep], sample.boxes[keep])
    assert np.array_equal(same.classes, sample.classes)


def test_warp_in_numbers() -> None:
    middle = np.full(8, 0.5)
    boxes = np.array([[10.0, 20, 30, 60]])

    def warped(
        unit: np.ndarray, out: tuple[int, int] = (100, 100), **ranges: float
    ) -> list[list[float]]:
        none = {"degrees": 0.0, "translate": 0.0, "scale": 0.0, "shear": 0.0, "perspective": 0.0}
        matrix, _ = perspective_matrix((100, 100), out, unit, **{**none, **ranges})
        return warp_boxes(boxes, [[]], matrix, out).round(6).tolist()

    high = np.ones(8)
    assert warped(middle) == [[10, 20, 30, 60]]
    # counter-clockwise: (x, y) -> (y, 100 - x)
    assert warped(high, degrees=90) == [[20, 70, 60, 90]]
    # x 50 + 1.5 (x - 50): -10 and 20; y: 5 and 65
    assert warped(high, scale=0.5) == [[0, 5, 20, 65]]
    assert warped(high, translate=0.1) == [[20, 30, 40, 70]]
    # the centres meet: x - 50 + 40, y - 50 + 25
    assert warped(middle, out=(50, 80)) == [[0, 0, 20, 35]]
    # x + (y - 50): -20 ... 40
    assert warped(np.where(np.arange(8) == 4, 1.0, 0.5), shear=45) == [[0, 20, 40, 60]]


@given(st.lists(fractions, min_size=8, max_size=8))
@few
def test_labels_follow_the_pixels_through_a_warp(unit: list[float]) -> None:
    sample = painted(120, 160, 60, 40, 110, 75)
    ranges = {**STRONG, "degrees": 20.0, "translate": 0.1, "scale": 0.3}
    matrix, scale = perspective_matrix(sample.size, (128, 128), np.array(unit), **ranges)
    warped = warp_sample(sample, matrix, scale, (128, 128))
    assert len(warped.boxes) == 1
    # Half a pixel, scaled, as OpenCV's pixels have their origin at their centre; the rest is the
    # blur of the corners' tips.
    np.testing.assert_allclose(white_box(warped.image), warped.boxes[0], rtol=0, atol=2)


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        ([0, 0, 2.0, 50], False),  # not wider than 2 px
        ([0, 0, 2.1, 50], True),
        ([0, 0, 50, 2.0], False),
        ([0, 0, 10, 9.9], False),  # 99 of 1000 square pixels
        ([0, 0, 10, 10.1], True),
        ([0, 0, 300, 2.9], False),  # 103 times as wide as high
        ([0, 0, 280, 2.9], True),
    ],
)
def test_what_is_left_of_a_box(after: list[float], kept: bool) -> None:
    assert is_candidate(np.array([[0, 0, 20, 50.0]]), np.array([after]), 0.1).tolist() == [kept]


def test_warp_drops_the_classes_with_the_boxes() -> None:
    sample = Sample(
        noise(40, 40),
        np.array([[0, 0, 9, 9], [20, 20, 30, 30], [31, 2, 39, 9]], np.float32),
        np.array([4, 5, 6]),
    )
    matrix = np.array([[1, 0, -15], [0, 1, 0], [0, 0, 1.0]])
    moved = warp_sample(sample, matrix, 1.0, (40, 40))
    assert moved.boxes.tolist() == [[5, 20, 15, 30], [16, 2, 24, 9]]
    assert moved.classes.tolist() == [5, 6]
    assert np.array_equal(moved.image[:, :25], sample.image[:, 15:])
    assert (moved.image[:, 25:] == GREY).all()
