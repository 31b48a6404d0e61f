"""Geometry by property and by slow loops; samples and batches as functions of seed, epoch and index."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from detector.boxes import (
    area_xyxy,
    clip_xyxy,
    cxcywh_to_xyxy,
    cxcywhn_to_xyxy,
    iou_cxcywh,
    pairwise_iou_xyxy,
    xyxy_to_cxcywh,
    xyxy_to_cxcywhn,
)
from detector.data.augment import Augment, TrainSamples, ValidationSamples, validation_steps
from detector.data.colour import Albumentations, RandomFlip, RandomHSV, adjust_hsv, flip
from detector.data.datamodule import DetectionData
from detector.data.letterbox import GREY, Letterbox, Resize, letterbox, resize_longest
from detector.data.mixing import CopyPaste, MixUp, copy_paste, mixup
from detector.data.mosaic import Mosaic, mosaic
from detector.data.perspective import is_candidate, perspective_matrix, warp_boxes, warp_sample
from detector.data.sample import Frame, Polygons, Sample, collate
from detector.data.sampler import (
    GivenBatches,
    Key,
    TrainBatches,
    class_weights,
    image_weights,
    rectangular_batches,
)
from detector.data.yolo_txt import YoloDataset
from detector.errors import InputError

few = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
fractions = st.floats(0, 1, exclude_max=True)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def random_boxes(rng: np.random.Generator, n: int, width: float, height: float) -> np.ndarray:
    """(n, 4) float32 xyxy inside width x height, no side shorter than a tenth."""
    low = rng.uniform(0, 0.9, (n, 2))
    high = low + 0.1 + (0.9 - low) * rng.random((n, 2))
    return (np.hstack((low, high)) * (width, height, width, height)).astype(np.float32)


def random_sample(seed: int, height: int, width: int, n: int = 3, polygons: bool = True) -> Sample:
    """Noise with n boxes; every other one has a polygon whose hull it is."""
    rng = np.random.default_rng(seed)
    boxes = random_boxes(rng, n, width, height)
    parts: Polygons = [[] for _ in range(n)]
    for i in range(0, n if polygons else 0, 2):
        x1, y1, x2, y2 = boxes[i]
        parts[i] = [np.array(((x1, y1), (x2, (y1 + y2) / 2), (x1, y2)), np.float32)]
    return Sample(noise(height, width, seed), boxes, rng.integers(0, 5, n), parts, Frame(height, width), index=seed % 100)


def painted(height: int, width: int, x1: int, y1: int, x2: int, y2: int) -> Sample:
    """A black image with one white box, its label."""
    image = np.zeros((height, width, 3), np.uint8)
    image[y1:y2, x1:x2] = 255
    return Sample(image, np.array([[x1, y1, x2, y2]], np.float32), np.zeros(1, np.int64), frame=Frame(height, width))


def white_box(image: np.ndarray) -> np.ndarray:
    """xyxy of what is at least half white, over the padding's grey."""
    x, y, w, h = cv2.boundingRect((image[..., 0] > (255 + GREY) / 2).astype(np.uint8))
    return np.array((x, y, x + w, y + h))


def assert_same(a: Sample, b: Sample) -> None:
    assert np.array_equal(a.image, b.image)
    assert np.array_equal(a.boxes, b.boxes)
    assert np.array_equal(a.classes, b.classes)
    assert [[p.tolist() for p in parts] for parts in a.polygons] == [[p.tolist() for p in parts] for parts in b.polygons]
    assert (a.frame, a.index) == (b.frame, b.index)


# ---- Box formats


@given(seeds, st.integers(0, 6), st.integers(1, 5000), st.integers(1, 5000))
@few
def test_conversions_are_inverse(seed: int, n: int, width: int, height: int) -> None:
    boxes = random_boxes(np.random.default_rng(seed), n, width, height).astype(float)
    np.testing.assert_allclose(cxcywh_to_xyxy(xyxy_to_cxcywh(boxes)), boxes, rtol=0, atol=1e-9)
    fractions = xyxy_to_cxcywhn(boxes, width, height)
    assert fractions.min(initial=0.5) >= 0
    assert fractions.max(initial=0.5) <= 1
    np.testing.assert_allclose(cxcywhn_to_xyxy(fractions, width, height), boxes, rtol=0, atol=1e-9)
    shifted = cxcywhn_to_xyxy(fractions, width, height, pad_x=7, pad_y=-3.5)
    np.testing.assert_allclose(shifted - (7, -3.5, 7, -3.5), boxes, rtol=0, atol=1e-9)


@given(seeds, st.integers(0, 6))
@few
def test_numpy_and_torch_agree(seed: int, n: int) -> None:
    boxes = np.random.default_rng(seed).uniform(-50, 150, (n, 4))
    for convert in (
        cxcywh_to_xyxy,
        xyxy_to_cxcywh,
        lambda b: cxcywhn_to_xyxy(b, 640, 480, 1.5, 2),
        lambda b: xyxy_to_cxcywhn(b, 640, 480),
        lambda b: clip_xyxy(b, 100, 80),
        area_xyxy,
    ):
        for dtype in (np.float32, np.float64):
            ours, theirs = convert(boxes.astype(dtype)), convert(torch.from_numpy(boxes.astype(dtype)))
            assert isinstance(theirs, torch.Tensor)
            assert np.array_equal(ours, theirs.numpy())
            assert ours.dtype == dtype
            assert ours.shape == ((n,) if convert is area_xyxy else (n, 4))


def test_conversions_in_numbers() -> None:
    corners = np.array([[40.0, 15, 60, 35]])
    assert xyxy_to_cxcywh(corners).tolist() == [[50, 25, 20, 20]]
    assert xyxy_to_cxcywhn(corners, 100, 50).tolist() == [[0.5, 0.5, 0.2, 0.4]]
    assert cxcywhn_to_xyxy(np.array([[0.5, 0.5, 0.25, 0.5]]), 100, 50, 10, 20).tolist() == [[47.5, 32.5, 72.5, 57.5]]
    assert clip_xyxy(np.array([[-3.0, 5, 120, 60]]), 100, 50).tolist() == [[0, 5, 100, 50]]
    assert area_xyxy(np.array([[[1.0, 2, 4, 6]]])).tolist() == [[12]], "any leading shape"


@given(seeds)
@few
def test_pairwise_iou_against_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = random_boxes(rng, 4, 50, 50), random_boxes(rng, 3, 50, 50)
    ours = pairwise_iou_xyxy(a, b)
    for i, (ax1, ay1, ax2, ay2) in enumerate(a.tolist()):
        for j, (bx1, by1, bx2, by2) in enumerate(b.tolist()):
            shared = max(min(ax2, bx2) - max(ax1, bx1), 0) * max(min(ay2, by2) - max(ay1, by1), 0)
            whole = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
            assert ours[i, j] == pytest.approx(shared / whole, abs=1e-5)
    centred = (torch.from_numpy(xyxy_to_cxcywh(x)) for x in (a[:3], b))
    np.testing.assert_allclose(iou_cxcywh(*centred, kind="iou"), np.diag(ours), rtol=0, atol=1e-5)


# ---- Resize and letterbox

sides = st.integers(10, 600)
targets = st.sampled_from([64, 96, 128, 320])


@given(seeds, sides, sides, targets, targets, targets, st.booleans(), st.booleans())
@few
def test_frame_leads_back_to_the_file(
    seed: int, height: int, width: int, size: int, out_height: int, out_width: int, smooth: bool, scaleup: bool
) -> None:
    assume(max(height, width) <= 12 * min(height, width))
    boxes = random_boxes(np.random.default_rng(seed), 4, width, height)
    sample = Sample(np.zeros((height, width, 3), np.uint8), boxes, np.arange(4), frame=Frame(height, width), index=0)
    assume(scaleup or size <= min(out_height, out_width))  # else it must shrink, which is covered by scaleup
    for step in (Resize(size, smooth), Letterbox(np.array([[out_height, out_width]]), scaleup)):
        sample = step(sample)
    assert sample.size == (out_height, out_width)
    assert sample.boxes.dtype == np.float32
    assert sample.boxes.min() >= -1e-3
    assert (sample.boxes <= np.array((out_width, out_height) * 2) + 1).all()
    assert sample.frame is not None
    back = sample.frame.to_file(sample.boxes)
    np.testing.assert_allclose(back, boxes, rtol=0, atol=1e-3)
    assert back.dtype == np.float32


def test_frame_in_numbers() -> None:
    frame = Frame(100, 200).resized(0.5, 0.25).shifted(10, 20)
    assert frame == (100, 200, 0.5, 0.25, 10, 20)
    assert frame.resized(2, 4) == (100, 200, 1, 1, 20, 80)
    # x: (20 - 10) / 0.5 = 20, (200 - 10) / 0.5 = 380, of at most 200; y: (20 - 20) / 0.25 = 0, (30 - 20) / 0.25 = 40
    assert frame.to_file(np.array([[20.0, 20, 200, 30]])).tolist() == [[20, 0, 200, 40]]


@given(sides, sides, targets, st.booleans())
@few
def test_longer_side_is_exact_and_the_shorter_rounded_up(height: int, width: int, size: int, smooth: bool) -> None:
    sample = Sample(np.zeros((height, width, 3), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    image = resize_longest(sample, size, smooth).image
    longer, shorter = max(height, width), min(height, width)
    whole = -(-shorter * size // longer)  # in integers: no rounding to speak of
    assert image.shape[:2] == ((size, whole) if height >= width else (whole, size))


@given(sides, sides, targets, targets, st.booleans())
@few
def test_letterbox_keeps_the_aspect(height: int, width: int, out_height: int, out_width: int, scaleup: bool) -> None:
    assume(max(height, width) <= 12 * min(height, width))
    image, gain, (pad_x, pad_y) = letterbox(
        np.full((height, width, 3), 255, np.uint8), (out_height, out_width), scaleup=scaleup
    )
    assert image.shape == (out_height, out_width, 3)
    assert set(np.unique(image)) <= {GREY, 255}
    r = min(out_height / height, out_width / width)
    r = r if scaleup else min(r, 1)
    assert gain == (r, r)
    x, y, w, h = cv2.boundingRect((image[..., 0] == 255).astype(np.uint8))
    assert abs(w - width * r) <= 0.5
    assert abs(h - height * r) <= 0.5
    assert (w, h) != (0, 0)
    assert (x, y) == (int(pad_x), int(pad_y)), "half pixels are rounded down"
    assert (out_width - w, out_height - h) == (2 * pad_x, 2 * pad_y), "what is left over is shared by both sides"
    assert (image == 255).all(-1).sum() == w * h, "one whole rectangle"


@given(sides, sides, targets)
@few
def test_automatic_letterbox_is_the_least_multiple_of_the_stride(height: int, width: int, size: int) -> None:
    assume(max(height, width) <= 12 * min(height, width))
    image, _, _ = letterbox(np.full((height, width, 3), 255, np.uint8), (size, size), auto=True, stride=32)
    _, _, w, h = cv2.boundingRect((image[..., 0] == 255).astype(np.uint8))
    assert image.shape == (-(-h // 32) * 32, -(-w // 32) * 32, 3)
    assert max(image.shape) == size


@given(st.integers(80, 300), st.integers(80, 300), targets, targets, targets, st.booleans())
@few
def test_labels_follow_the_pixels_through_resize_and_letterbox(
    height: int, width: int, size: int, out_height: int, out_width: int, smooth: bool
) -> None:
    sample = painted(height, width, width // 5, height // 4, width * 4 // 5, height // 2)
    for step in (Resize(size, smooth), Letterbox(np.array([[out_height, out_width]]), scaleup=True)):
        sample = step(replace(sample, index=0))
    # A pixel for the edges' blur, one for the padding's half pixel and the rounded size.
    np.testing.assert_allclose(white_box(sample.image), sample.boxes[0], rtol=0, atol=2)


# ---- Flip


@given(seeds, st.integers(10, 60), st.integers(10, 60), st.sampled_from([0, 1]))
@few
def test_flip_twice_is_the_identity(seed: int, height: int, width: int, axis: int) -> None:
    sample = random_sample(seed, height, width)
    sample.boxes = sample.boxes.round(0)  # whole numbers are exact in float32
    sample.polygons = [[part.round(0) for part in parts] for parts in sample.polygons]
    once = flip(sample, axis)
    assert np.array_equal(once.image, np.flip(sample.image, axis))
    assert (once.boxes[:, 2:] >= once.boxes[:, :2]).all()
    assert_same(flip(once, axis), replace(sample, frame=None))


def test_flip_in_numbers() -> None:
    triangle = np.array(((1, 2), (4, 2), (4, 8)), np.float32)
    sample = Sample(noise(20, 10), np.array([[1, 2, 4, 8]], np.float32), np.array([3]), [[triangle]])
    left_right, upside_down = flip(sample, 1), flip(sample, 0)
    assert left_right.boxes.tolist() == [[6, 2, 9, 8]]  # 10 - 4, 10 - 1
    assert left_right.polygons[0][0].tolist() == [[9, 2], [6, 2], [6, 8]]
    assert upside_down.boxes.tolist() == [[1, 12, 4, 18]]  # 20 - 8, 20 - 2
    assert upside_down.polygons[0][0].tolist() == [[1, 18], [4, 18], [4, 12]]
    assert np.array_equal(left_right.image[:, 6:9], sample.image[:, 3:0:-1]), "the box holds the same pixels"
    assert sample.boxes.tolist() == [[1, 2, 4, 8]], "the input is not touched"


@pytest.mark.parametrize(("p", "share"), [(0.0, 0), (1.0, 400), (0.25, 100)])
def test_flip_probability(p: float, share: int) -> None:
    sample, rng = random_sample(0, 10, 12), np.random.default_rng(0)
    flipped = sum(RandomFlip(1, p)(sample, rng) is not sample for _ in range(400))
    assert abs(flipped - share) <= (0 if p in (0, 1) else 35)  # four standard deviations: 4 sqrt(400 * 0.25 * 0.75)


# ---- Warp

STRONG = {"degrees": 40.0, "translate": 0.2, "scale": 0.5, "shear": 10.0, "perspective": 0.001}


@given(seeds, st.lists(fractions, min_size=8, max_size=8), st.integers(20, 90), st.integers(20, 90))
@few
def test_warp_boxes_against_a_loop_over_corners(seed: int, unit: list[float], height: int, width: int) -> None:
    matrix, _ = perspective_matrix((60, 80), (height, width), np.array(unit), **STRONG)
    boxes = random_boxes(np.random.default_rng(seed), 5, 80, 60)
    polygon = np.array(((5, 5), (50, 10), (20, 55)), np.float32)
    ours = warp_boxes(boxes, [[]] * 4 + [[polygon]], matrix, (height, width))

    def moved(x: float, y: float) -> tuple[float, float]:
        u, v, w = (row[0] * x + row[1] * y + row[2] for row in matrix.tolist())
        return u / w, v / w

    for box, (x1, y1, x2, y2) in zip(ours, boxes[:4].tolist(), strict=False):
        corners = [moved(x, y) for x in (x1, x2) for y in (y1, y2)]
        xs, ys = [min(max(x, 0), width) for x, _ in corners], [min(max(y, 0), height) for _, y in corners]
        np.testing.assert_allclose(box, (min(xs), min(ys), max(xs), max(ys)), rtol=0, atol=1e-6)
    # The object with a polygon: the hull of what of its outline stays inside, walked in steps finer than ours.
    outline = []
    for (ax, ay), (bx, by) in zip(polygon.tolist(), np.roll(polygon, -1, 0).tolist(), strict=True):
        outline += [moved(ax + (bx - ax) * t / 2000, ay + (by - ay) * t / 2000) for t in range(2000)]
    inside = [(x, y) for x, y in outline if 0 <= x <= width and 0 <= y <= height]
    hull = np.array((*np.min(inside, 0), *np.max(inside, 0))) if inside else np.zeros(4)
    np.testing.assert_allclose(ours[4], hull, rtol=0, atol=0.7)  # our points are up to 0.2 px apart, then scaled by up to 1.5


@given(seeds, st.integers(20, 90), st.integers(20, 90))
@few
def test_identity_leaves_everything(seed: int, height: int, width: int) -> None:
    sample = random_sample(seed, height, width)
    np.testing.assert_allclose(
        warp_boxes(sample.boxes, sample.polygons, np.eye(3), sample.size), sample.boxes, rtol=0, atol=1e-5
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

    def warped(unit: np.ndarray, out: tuple[int, int] = (100, 100), **ranges: float) -> list[list[float]]:
        none = {"degrees": 0.0, "translate": 0.0, "scale": 0.0, "shear": 0.0, "perspective": 0.0}
        matrix, _ = perspective_matrix((100, 100), out, unit, **{**none, **ranges})
        return warp_boxes(boxes, [[]], matrix, out).round(6).tolist()

    high = np.ones(8)
    assert warped(middle) == [[10, 20, 30, 60]]
    assert warped(high, degrees=90) == [[20, 70, 60, 90]]  # counter-clockwise: (x, y) -> (y, 100 - x)
    assert warped(high, scale=0.5) == [[0, 5, 20, 65]]  # x 50 + 1.5 (x - 50): -10 and 20; y: 5 and 65
    assert warped(high, translate=0.1) == [[20, 30, 40, 70]]
    assert warped(middle, out=(50, 80)) == [[0, 0, 20, 35]]  # the centres meet: x - 50 + 40, y - 50 + 25
    assert warped(np.where(np.arange(8) == 4, 1.0, 0.5), shear=45) == [[0, 20, 40, 60]]  # x + (y - 50): -20 ... 40


@given(st.lists(fractions, min_size=8, max_size=8))
@few
def test_labels_follow_the_pixels_through_a_warp(unit: list[float]) -> None:
    sample = painted(120, 160, 60, 40, 110, 75)
    ranges = {**STRONG, "degrees": 20.0, "translate": 0.1, "scale": 0.3}
    matrix, scale = perspective_matrix(sample.size, (128, 128), np.array(unit), **ranges)
    warped = warp_sample(sample, matrix, scale, (128, 128))
    assert len(warped.boxes) == 1
    # Half a pixel, scaled, as OpenCV's pixels have their origin at their centre; the rest is the blur of the corners' tips.
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
    sample = Sample(noise(40, 40), np.array([[0, 0, 9, 9], [20, 20, 30, 30], [31, 2, 39, 9]], np.float32), np.array([4, 5, 6]))
    matrix = np.array([[1, 0, -15], [0, 1, 0], [0, 0, 1.0]])
    moved = warp_sample(sample, matrix, 1.0, (40, 40))
    assert moved.boxes.tolist() == [[5, 20, 15, 30], [16, 2, 24, 9]]
    assert moved.classes.tolist() == [5, 6]
    assert np.array_equal(moved.image[:, :25], sample.image[:, 15:])
    assert (moved.image[:, 25:] == GREY).all()


# ---- Mosaic


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=4, max_size=4),
    st.integers(4, 11),
    st.integers(4, 11),
    seeds,
)
@few
def test_mosaic_pixel_by_pixel(shapes: list[tuple[int, int]], xc: int, yc: int, seed: int) -> None:
    size = 8
    tiles = [random_sample(seed + k, h, w, n=2) for k, (h, w) in enumerate(shapes)]
    mixed = mosaic(tiles, size, xc, yc)
    assert mixed.image.shape == (16, 16, 3)
    for y in range(16):
        for x in range(16):
            k = (x >= xc) + 2 * (y >= yc)  # top left, top right, bottom left, bottom right
            h, w = shapes[k]
            tile_x, tile_y = (x - xc if k % 2 else x - xc + w), (y - yc if k > 1 else y - yc + h)
            inside = 0 <= tile_x < w and 0 <= tile_y < h
            expected = tiles[k].image[tile_y, tile_x].tolist() if inside else [GREY] * 3
            assert mixed.image[y, x].tolist() == expected
    assert mixed.classes.tolist() == [c for t in tiles for c in t.classes.tolist()]
    assert mixed.boxes.min() >= 0
    assert mixed.boxes.max() <= 16
    shifts = [(xc - w * (k % 2 == 0), yc - h * (k < 2)) for k, (h, w) in enumerate(shapes)]
    boxes = np.concatenate([t.boxes + np.array(s * 2) for t, s in zip(tiles, shifts, strict=True)])
    np.testing.assert_allclose(mixed.boxes, boxes.clip(0, 16), rtol=0, atol=1e-5)
    for parts, box in zip(mixed.polygons[::2], mixed.boxes[::2], strict=True):  # every other object has a polygon
        np.testing.assert_allclose((*parts[0].min(0), *parts[0].max(0)), box, rtol=0, atol=1e-5)
    assert not any(mixed.polygons[1::2])
    assert mixed.frame is None


def test_mosaic_draws_its_partners_and_its_centre() -> None:
    """A tile of one colour each; the colour at a corner of the centre says who lies there."""
    tiles = iter(range(1, 1000))

    def one(value: int) -> Sample:
        return Sample(
            np.full((32, 32, 3), value % 100, np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64), index=value
        )

    rng, centres, places = np.random.default_rng(0), set(), Counter[int]()
    for _ in range(60):
        mixed = Mosaic(32, 1.0)(one(0), rng, lambda: one(next(tiles)))
        assert mixed.size == (64, 64)
        assert mixed.index == 0, "that of the sample, not of a partner"
        ys, xs = np.nonzero(mixed.image[..., 0] == 0)
        ends = (int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1)
        left, top = int(ends[2] - 32 == ends[0] or ends[0] == 0), int(ends[3] - 32 == ends[1] or ends[1] == 0)
        places[left + 2 * top] += 1
        centres.add(ends)
    assert next(tiles) == 181, "three partners each"
    assert len(centres) > 40


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_without_mosaic_the_image_is_letterboxed(p: float) -> None:
    sample = painted(16, 32, 8, 4, 24, 12)
    got = Mosaic(32, p)(sample, np.random.default_rng(0), lambda: sample)
    if p:
        assert got.size == (64, 64)
        assert got.frame is None
    else:
        assert got.size == (32, 32)
        assert got.boxes.tolist() == [[8, 12, 24, 20]]  # (32 - 16) / 2 = 8 lower
        assert got.frame == (16, 32, 1, 1, 0, 8)


# ---- MixUp, copy-paste, colour


@given(seeds, st.floats(0, 1))
@few
def test_mixup(seed: int, ratio: float) -> None:
    a, b = random_sample(seed, 12, 15), random_sample(seed + 1, 12, 15, n=2)
    blend = mixup(a, b, ratio)
    assert blend.image.dtype == np.uint8
    between = a.image * ratio + b.image * (1 - ratio)
    assert (np.abs(blend.image - between) <= 1).all()
    assert np.array_equal(blend.boxes, np.concatenate((a.boxes, b.boxes)))
    assert blend.classes.tolist() == a.classes.tolist() + b.classes.tolist()
    assert len(blend.polygons) == 5
    assert blend.index == a.index
    assert np.array_equal(mixup(a, b, 1.0).image, a.image)
    assert np.array_equal(mixup(a, b, 0.0).image, b.image)


def test_mixup_ratio_is_near_a_half() -> None:
    """Beta(32, 32) has mean 1/2 and standard deviation sqrt(1 / (4 * 65)) = 0.062."""
    white, black = painted(10, 10, 0, 0, 10, 10), painted(10, 10, 0, 0, 10, 10)
    black.image = np.zeros_like(black.image)
    rng = np.random.default_rng(0)
    ratios = [MixUp(1.0)(white, rng, lambda: black).image[0, 0, 0] / 255 for _ in range(300)]
    assert np.mean(ratios) == pytest.approx(0.5, abs=0.02)
    assert np.std(ratios) == pytest.approx(0.062, abs=0.01)
    assert MixUp(0.0)(white, rng, lambda: pytest.fail("nothing is drawn")) is white


@given(seeds, st.integers(0, 5))
@few
def test_copy_paste(seed: int, tries: int) -> None:
    sample = random_sample(seed, 40, 60, n=5)
    before = replace(sample, image=sample.image.copy(), boxes=sample.boxes.copy())
    candidates = np.random.default_rng(seed).permutation(5)[:tries].tolist()
    pasted = copy_paste(sample, candidates)
    assert_same(sample, before)
    n = len(pasted.boxes)
    assert 5 <= n <= 5 + tries
    assert len(pasted.classes) == len(pasted.polygons) == n
    assert np.array_equal(pasted.boxes[:5], sample.boxes)
    assert pasted.classes[:5].tolist() == sample.classes.tolist()

    # Those that are pasted: candidates with a polygon, in order, that cover less than 0.3 of each box so far, pasted included.
    boxes, classes, may_change = list(sample.boxes), sample.classes.tolist(), np.zeros((40, 60), bool)
    for i in candidates:
        x1, y1, x2, y2 = sample.boxes[i].tolist()
        x1, x2 = 60 - x2, 60 - x1
        covered = [
            max(min(x2, b[2]) - max(x1, b[0]), 0) * max(min(y2, b[3]) - max(y1, b[1]), 0) / ((b[2] - b[0]) * (b[3] - b[1]))
            for b in boxes
        ]
        if sample.polygons[i] and max(covered) < 0.3:
            boxes.append(np.array((x1, y1, x2, y2)))
            classes.append(int(sample.classes[i]))
            may_change[max(int(y1) - 1, 0) : int(y2) + 2, max(int(x1) - 1, 0) : int(x2) + 2] = True
    np.testing.assert_allclose(pasted.boxes, boxes, rtol=0, atol=1e-4)
    assert pasted.classes.tolist() == classes
    mirrored, changed = sample.image[:, ::-1], (pasted.image != sample.image).any(-1)
    assert np.array_equal(pasted.image[changed], mirrored[changed])
    assert not (changed & ~may_change).any()
    assert changed.any() == (n > 5)


def test_copy_paste_in_numbers() -> None:
    """A square in the left half appears in the right half, as its mirror image."""
    square = np.array(((2, 3), (6, 3), (6, 8), (2, 8)), np.float32)
    sample = Sample(noise(12, 20), np.array([[2, 3, 6, 8]], np.float32), np.array([4]), [[square]])
    pasted = copy_paste(sample, [0])
    assert pasted.boxes.tolist() == [[2, 3, 6, 8], [14, 3, 18, 8]]
    assert pasted.classes.tolist() == [4, 4]
    assert pasted.polygons[1][0].tolist() == [[18, 3], [14, 3], [14, 8], [18, 8]]
    assert np.array_equal(pasted.image[3:8, 14:18], sample.image[3:8, 5:1:-1])
    assert np.array_equal(pasted.image[:, :13], sample.image[:, :13])


@pytest.mark.parametrize(("p", "pasted"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_copy_paste_share(p: float, pasted: int) -> None:
    """Four small objects whose mirror images meet nobody."""
    boxes = np.array([[2, y, 6, y + 4] for y in (2, 12, 22, 32)], np.float32)
    outlines = [[b[[0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)] for b in boxes]
    sample = Sample(noise(40, 40), boxes, np.arange(4), outlines)
    assert len(CopyPaste(p)(sample, np.random.default_rng(0)).boxes) == 4 + pasted
    bare = replace(sample, polygons=[[]] * 4)
    assert CopyPaste(p)(bare, np.random.default_rng(0)) is bare


def test_hsv_gains_of_one_change_nearly_nothing() -> None:
    """Hue is kept in steps of 2 degrees, of which 60 take a channel through 255: rounding by half a step moves it by 4.25."""
    steps = np.arange(0, 256, 5, dtype=np.uint8)
    every = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(52, -1, 3)
    change = np.abs(adjust_hsv(every, (1, 1, 1)).astype(int) - every)
    assert change.max() <= 6
    assert change.mean() < 0.7
    greys = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, -1)
    assert np.array_equal(adjust_hsv(greys, (1, 1, 1)), greys)


@pytest.mark.parametrize(
    ("colour", "gains", "expected"),
    [
        ((200, 100, 50), (1, 1, 0.5), (100, 50, 25)),
        ((200, 100, 50), (1, 1, 2), (255, 128, 64)),  # value 400, limited to 255; 255 / 200 of each
        ((200, 100, 50), (1, 0, 1), (200, 200, 200)),
        ((0, 255, 0), (2, 1, 1), (0, 0, 255)),  # hue 60 of 180 becomes 120
        ((0, 0, 255), (2, 1, 1), (0, 255, 0)),  # hue 120 becomes 240 - 180 = 60
        ((255, 0, 0), (1.5, 1, 1), (255, 0, 0)),  # red is hue 0 and stays
    ],
)
def test_hsv_in_numbers(colour: tuple[int, ...], gains: tuple[float, ...], expected: tuple[int, ...]) -> None:
    assert adjust_hsv(np.array([[colour]], np.uint8), gains)[0, 0].tolist() == list(expected)


def test_hsv_off_changes_nothing() -> None:
    sample = random_sample(0, 10, 10)
    assert RandomHSV(0, 0, 0)(sample, np.random.default_rng(0)) is sample
    changed = RandomHSV(0, 0, 0.4)(sample, np.random.default_rng(0))
    assert not np.array_equal(changed.image, sample.image)
    assert np.array_equal(changed.boxes, sample.boxes)


# ---- Albumentations


def with_transform(name: str, sample: Sample, seed: int = 0, **options: Any) -> Sample:
    return Albumentations([{name: options}])(sample, np.random.default_rng(seed))


def test_albumentations_moves_the_boxes() -> None:
    sample = random_sample(3, 30, 50, polygons=False)
    mirrored = with_transform("HorizontalFlip", sample, p=1)
    assert np.array_equal(mirrored.image, sample.image[:, ::-1])
    assert mirrored.image.dtype == np.uint8
    np.testing.assert_allclose(mirrored.boxes, flip(sample, 1).boxes, rtol=0, atol=1e-3)
    assert mirrored.classes.tolist() == sample.classes.tolist()
    assert (mirrored.boxes.dtype, mirrored.classes.dtype) == (np.float32, np.int64)
    assert mirrored.index == sample.index
    swapped = with_transform("Transpose", sample, p=1)
    assert swapped.size == (50, 30)
    np.testing.assert_allclose(swapped.boxes, sample.boxes[:, [1, 0, 3, 2]], rtol=0, atol=1e-3)


def test_albumentations_clips_and_drops_boxes() -> None:
    boxes = np.array([[-5, -5, 10, 10], [20, 5, 20, 9], [60, 5, 70, 9], [5, 5, 45, 35], [30, 2, 39, 9]], np.float32)
    sample = Sample(noise(40, 50), boxes, np.array([1, 2, 3, 4, 5]))
    kept = with_transform("Blur", sample, p=0)
    assert kept.boxes.round(3).tolist() == [[0, 0, 10, 10], [5, 5, 45, 35], [30, 2, 39, 9]], "no size; outside"
    assert kept.classes.tolist() == [1, 4, 5]
    cropped = with_transform("Crop", sample, x_min=0, y_min=0, x_max=25, y_max=20, p=1)
    assert cropped.boxes.round(3).tolist() == [[0, 0, 10, 10], [5, 5, 25, 20]]
    assert cropped.classes.tolist() == [1, 4]


def test_albumentations_without_objects() -> None:
    empty = Sample(noise(20, 20), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    changed = with_transform("HorizontalFlip", empty, p=1)
    assert changed.boxes.shape == (0, 4)
    assert changed.classes.shape == (0,)


def test_albumentations_follows_the_given_generator() -> None:
    step = Albumentations([{"RandomBrightnessContrast": {"p": 0.5}}, {"Affine": {"rotate": [-30, 30], "p": 0.5}}])
    sample = random_sample(0, 30, 30)
    first = [step(sample, np.random.default_rng(k)) for k in range(6)]
    for k in (4, 0, 5):
        assert_same(step(sample, np.random.default_rng(k)), first[k])
    assert len({s.image.tobytes() for s in first}) > 2


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ([{"Blurr": {}}], ["no transform 'Blurr'", "did you mean 'Blur'?"]),
        ([{"Blur": {}}, {"HorizontalFlop": {"p": 1}}], ["'HorizontalFlop'", "did you mean 'HorizontalFlip'?"]),
        ([{"np": {}}], ["no transform 'np'"]),
        ([{"Blur": {"p": 2}}], ["transform Blur", "p ", "less than or equal to 1"]),
        ([{"Blur": {"blur_limit": "wide"}}], ["transform Blur", "blur_limit"]),
        ([{"RandomCrop": {}}], ["transform RandomCrop", "height", "width"]),
        ([{"Blur": 3}], ["transform Blur"]),
        ([{"Blur": {"blur_limt": 3}}], ["transform Blur", "blur_limt"]),
        (["Blur"], ["Blur"]),
        ([{"BasicTransform": {}}], ["BasicTransform"]),
        ([{"OneOf": {"transforms": [{"Blurr": {}}]}}], ["no transform 'Blurr'"]),
        ([{"OneOf": {"transforms": "Blur"}}], ["'Blur'"]),
    ],
)
def test_albumentations_errors(transforms: list[Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        Albumentations(transforms)
    assert [word for word in words if word not in str(caught.value)] == []


def test_groups_of_albumentations() -> None:
    """One of the two, never both, and each now and then."""
    step = Albumentations([{"OneOf": {"transforms": [{"HorizontalFlip": {"p": 1}}, {"VerticalFlip": {"p": 1}}], "p": 1}}])
    sample = random_sample(0, 30, 30)
    images = {step(sample, np.random.default_rng(k)).image.tobytes() for k in range(20)}
    assert images == {np.ascontiguousarray(np.flip(sample.image, axis)).tobytes() for axis in (0, 1)}


def test_albumentations_transforms_decide_each_for_itself() -> None:
    step = Albumentations([{"HorizontalFlip": {"p": 0.5}}, {"VerticalFlip": {"p": 0.5}}])
    sample = random_sample(0, 30, 30)
    assert len({step(sample, np.random.default_rng(k)).image.tobytes() for k in range(40)}) == 4


# ---- Samples are a function of the key and the seed

EVERYTHING = Augment(
    degrees=10, shear=3, perspective=0.0005, flipud=0.3, mosaic=0.6, mixup=0.4, copy_paste=0.5,
    albumentations=[{"RandomBrightnessContrast": {"p": 0.5}}, {"HorizontalFlip": {"p": 0.3}}],
)  # fmt: skip
SIZE = 64
SHAPES = [(30, 64), (64, 64), (48, 40), (20, 60), (64, 33), (50, 50), (90, 70), (40, 64)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> YoloDataset:
    """Eight images of noise, two objects each, one of them with a polygon."""
    root = tmp_path_factory.mktemp("set")
    (root / "images").mkdir()
    (root / "labels").mkdir()
    for k, (h, w) in enumerate(SHAPES):
        cv2.imwrite(str(root / f"images/{k}.png"), noise(h, w, k))
        lines = f"{k % 3} 0.3 0.4 0.3 0.5\n{(k + 1) % 3} 0.6 0.2 0.9 0.3 0.9 0.7\n"
        (root / f"labels/{k}.txt").write_text(lines)
    (root / "data.yaml").write_text("train: images\nval: images\nnames: [a, b, c]\n")
    return YoloDataset([root / "images"], ["a", "b", "c"], root)


@pytest.fixture
def data_yaml(dataset: YoloDataset) -> str:
    return str(Path(dataset.files[0]).parents[1] / "data.yaml")


def train_samples(dataset: YoloDataset, seed: int = 5, shapes: np.ndarray | None = None) -> TrainSamples:
    return TrainSamples(dataset, EVERYTHING.steps(SIZE, shapes), seed)


KEYS: list[Key] = [(epoch, index, repeat) for epoch in (0, 1) for index in range(8) for repeat in (0, 1)]


@pytest.fixture(scope="module")
def first_time(dataset: YoloDataset) -> dict[Key, Sample]:
    samples = train_samples(dataset)
    return {key: samples[key] for key in KEYS}


def test_samples_are_as_promised(first_time: dict[Key, Sample]) -> None:
    for (_, index, _), s in first_time.items():
        assert (s.image.shape, s.image.dtype, s.index) == ((SIZE, SIZE, 3), np.uint8, index)
        assert (s.boxes.dtype, s.classes.dtype) == (np.float32, np.int64)
        assert len(s.boxes) == len(s.classes) == len(s.polygons)
        assert s.boxes.min(initial=0) >= -1e-4
        assert s.boxes.max(initial=0) <= SIZE + 1e-4
        assert (s.boxes[:, 2:] > s.boxes[:, :2]).all()
    assert sum(len(s.boxes) for s in first_time.values()) > 60


def test_sample_does_not_depend_on_what_was_asked_before(dataset: YoloDataset, first_time: dict[Key, Sample]) -> None:
    fresh = train_samples(dataset)
    for key in [*KEYS[::-3], *KEYS[:4], KEYS[3]]:
        assert_same(fresh[key], first_time[key])


def test_sample_differs_with_each_part_of_the_key_and_the_seed(dataset: YoloDataset, first_time: dict[Key, Sample]) -> None:
    other_seed = train_samples(dataset, seed=6)
    images = [s.image.tobytes() for s in (*first_time.values(), *(other_seed[key] for key in KEYS[:8]))]
    assert len(set(images)) == len(images)


def test_labels_of_the_data_set_are_not_touched(dataset: YoloDataset, first_time: dict[Key, Sample]) -> None:
    again = YoloDataset([Path(dataset.files[0]).parent], dataset.names, Path())
    for ours, theirs in zip(dataset.labels, again.labels, strict=True):
        assert np.array_equal(ours.boxes, theirs.boxes)
        assert [[p.tolist() for p in parts] for parts in ours.polygons] == [
            [p.tolist() for p in parts] for parts in theirs.polygons
        ]


@pytest.mark.parametrize("rect", [False, True])
def test_other_processes_make_the_same_samples(dataset: YoloDataset, rect: bool) -> None:
    shapes = np.full((8, 2), SIZE) if rect else None
    batches = TrainBatches(8, 3, 5, done=lambda: 4)  # the second batch of the second epoch of three

    def through(workers: int) -> list[Any]:
        samples = train_samples(dataset, shapes=shapes)
        return list(DataLoader(samples, batch_sampler=batches, num_workers=workers, collate_fn=collate))

    alone, shared = through(0), through(2)
    assert [b.indices for b in alone] == [[k[1] for k in keys] for keys in batches]
    assert len(alone) == len(shared) == 2
    for a, b in zip(alone, shared, strict=True):
        assert a.indices == b.indices
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.targets, b.targets)


def test_validation_samples_have_no_randomness(dataset: YoloDataset) -> None:
    shapes = np.full((8, 2), SIZE)
    a, b = (ValidationSamples(dataset, validation_steps(SIZE, shapes)) for _ in range(2))
    for k in (3, 0, 3):
        assert_same(a[k], b[k])
        assert a[k].truth is dataset.labels[k]
        frame = a[k].frame
        assert frame is not None
        np.testing.assert_allclose(frame.to_file(a[k].boxes), dataset.labels[k].boxes, rtol=0, atol=1e-3)


def test_labels_follow_the_pixels_through_all_steps(tmp_path: Path) -> None:
    """One rectangle an image, coloured by class; where a box says there is one, its colour must fill just that box."""
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    for k in range(3):
        image = np.full((120, 160, 3), GREY, np.uint8)
        image[30:90, 40:120, 2 - k] = 255  # 40..120 of 160, 30..90 of 120; OpenCV writes BGR
        image[30:90, 40:120, [2 - c for c in range(3) if c != k]] = 0
        cv2.imwrite(str(tmp_path / f"images/{k}.png"), image)
        (tmp_path / f"labels/{k}.txt").write_text(f"{k} 0.5 0.5 0.5 0.5")
    augment = Augment(hsv_h=0, hsv_s=0, hsv_v=0, flipud=0.5, mosaic=0.7, translate=0.1, scale=0.3)
    samples = TrainSamples(YoloDataset([tmp_path / "images"], ["r", "g", "b"], tmp_path), augment.steps(160), 0)
    checked = 0
    for epoch in range(20):
        s = samples[(epoch, epoch % 3, 0)]
        for c, box in zip(s.classes, s.boxes, strict=True):
            x1, y1, x2, y2 = (box + np.array((-4, -4, 4, 4))).round().astype(int).clip(0)
            around = s.image[y1:y2, x1:x2].astype(int)
            pure = around[..., c] - np.delete(around, c, -1).max(-1) > 128
            assert pure.any()
            x, y, w, h = cv2.boundingRect(pure.astype(np.uint8))
            np.testing.assert_allclose((x1 + x, y1 + y, x1 + x + w, y1 + y + h), box, rtol=0, atol=2)
            checked += 1
    assert checked > 30


# ---- Batches


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), seeds)
@few
def test_each_image_once_an_epoch(n: int, per_rank: int, world: int, epoch: int, seed: int) -> None:
    batches = TrainBatches(n, per_rank * world, seed, done=lambda: 0, world=world).batches(epoch)
    assert all(e == epoch and repeat == 0 for batch in batches for e, _, repeat in batch)
    own = [key for batch in batches for key in dict.fromkeys(batch)]  # without what fills a batch up
    assert sorted(index for _, index, _ in own) == list(range(n))


@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from([1, 2, 3]), st.integers(0, 30), seeds)
@few
def test_ranks_share_one_global_order(n: int, per_rank: int, world: int, done: int, seed: int) -> None:
    batch_size = 6 * per_rank  # divides by 1, 2, 3
    assume(world == 1 or (n - 1) % min(batch_size, n) + 1 >= world)  # fewer in the last batch: see the next test
    alone = list(TrainBatches(n, batch_size, seed, done=lambda: done))
    ranks = [list(TrainBatches(n, batch_size, seed, done=lambda: done, rank=r, world=world)) for r in range(world)]
    for k, batch in enumerate(alone):
        shares = [ranks[r][k] for r in range(world)]
        assert len({len(share) for share in shares}) == 1, "all ranks do the same work"
        merged = [key for turn in zip(*shares, strict=True) for key in turn]
        assert merged[: len(batch)] == batch
        filled = merged[len(batch) :]
        assert len(filled) == -len(batch) % world
        assert filled == batch[: len(filled)]
    assert {len(rank) for rank in ranks} == {len(alone)}


@pytest.mark.parametrize(("n", "batch_size", "world"), [(7, 6, 3), (1, 6, 3), (9, 8, 4), (2, 6, 6)])
def test_last_batch_smaller_than_the_world(n: int, batch_size: int, world: int) -> None:
    ranks = [list(TrainBatches(n, batch_size, 0, done=lambda: 0, rank=r, world=world)) for r in range(world)]
    assert len({tuple(map(len, rank)) for rank in ranks}) == 1
    assert all(len(share) > 0 for rank in ranks for share in rank)


def test_order_changes_with_epoch_and_seed() -> None:
    orders = [TrainBatches(30, 4, seed, done=lambda: 0).order(epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert TrainBatches(30, 7, 0, done=lambda: 0).order(1).tolist() == orders[1], "whatever the batch size"


@pytest.mark.parametrize("limit", [None, 3])
def test_resume(limit: int | None) -> None:
    """Ten images in batches of three are four batches an epoch, or three of them."""
    length = limit or 4
    whole = TrainBatches(10, 3, seed=1, done=lambda: 0, limit=limit)
    assert len(whole) == length
    stream = [b for epoch in range(4) for b in whole.batches(epoch)[:length]]
    for done in range(3 * length):
        at = TrainBatches(10, 3, seed=1, done=lambda done=done: done, limit=limit)
        rest_of_epoch = length - done % length
        assert list(at) == stream[done : done + rest_of_epoch]
        assert len(at) == length, "Lightning counts whole epochs"


def test_position_is_asked_for_at_the_start_of_each_epoch() -> None:
    position = 0

    def run(sampler: TrainBatches) -> Iterator[list[Key]]:
        nonlocal position
        for batch in sampler:
            position += 1
            yield batch

    sampler = TrainBatches(5, 2, seed=0, done=lambda: position)
    epochs = [list(run(sampler)) for _ in range(3)]
    assert [{e for batch in epoch for e, _, _ in batch} for epoch in epochs] == [{0}, {1}, {2}]


@pytest.mark.parametrize(
    ("n", "batch_size", "limit", "batches"), [(10, 3, None, 4), (10, 3, 3, 3), (10, 3, 9, 4), (4, 16, None, 1), (8, 8, 1, 1)]
)
def test_number_of_batches(n: int, batch_size: int, limit: int | None, batches: int) -> None:
    sampler = TrainBatches(n, batch_size, 0, done=lambda: 0, limit=limit)
    assert len(sampler) == len(list(sampler)) == batches


def test_fixed_order() -> None:
    order = np.array([3, 0, 2, 1])
    sampler = TrainBatches(4, 3, 0, done=lambda: 0, order=order)
    assert sampler.batches(7) == [[(7, 3, 0), (7, 0, 0), (7, 2, 0)], [(7, 1, 0)]]


def test_repeats_are_numbered() -> None:
    sampler = TrainBatches(40, 7, 0, done=lambda: 0, weights=lambda: np.array([1.0, 3.0] + [0.0] * 38))
    keys = [key for batch in sampler.batches(2) for key in batch]
    assert len(keys) == 40
    for index in (0, 1):
        repeats = [repeat for _, i, repeat in keys if i == index]
        assert repeats == list(range(len(repeats)))
        assert len(repeats) > 4
    assert {i for _, i, _ in keys} == {0, 1}


def test_weights_are_asked_for_afresh() -> None:
    weights = np.array([1.0, 0, 0])
    sampler = TrainBatches(3, 3, 0, done=lambda: 0, weights=lambda: weights)
    assert sampler.order(0).tolist() == [0, 0, 0]
    weights = np.array([0, 0, 5.0])
    assert sampler.order(0).tolist() == [2, 2, 2]


def test_given_batches() -> None:
    batches = [[4, 1], [0, 2], [3]]
    assert list(GivenBatches(batches)) == batches
    assert [list(GivenBatches(batches, r, 2)) for r in range(2)] == [[[4, 1], [3]], [[0, 2]]]
    assert len(GivenBatches(batches, 1, 2)) == 1


# ---- Sampling by rarity


def test_rare_classes_come_more_often() -> None:
    """Nine images of class 0, one of class 1: weights 1/9 : 1 = 0.1 : 0.9; the rare image takes 0.9 / (9 * 0.1 + 0.9)."""
    classes = [np.zeros(1, int)] * 9 + [np.ones(1, int)]
    weights = image_weights(classes, class_weights(np.array([9, 1])))
    np.testing.assert_allclose(weights, [0.1] * 9 + [0.9])
    sampler = TrainBatches(10, 10, 0, done=lambda: 0, weights=lambda: weights)
    drawn = np.concatenate([sampler.order(epoch) for epoch in range(200)])
    assert (drawn == 9).mean() == pytest.approx(0.5, abs=0.05)  # 4 sqrt(0.25 / 2000) = 0.045


def test_class_weights_in_numbers() -> None:
    # 1/4, 1 (absent), 1/2 over their sum 7/4
    np.testing.assert_allclose(class_weights(np.array([4, 0, 2])), [1 / 7, 4 / 7, 2 / 7])
    image = [np.array([0, 0, 2]), np.array([], int)]
    np.testing.assert_allclose(image_weights(image, np.array([1 / 7, 4 / 7, 2 / 7])), [4 / 7, 0])


def test_image_weights_in_the_data_module(data_yaml: str) -> None:
    """A class that is found well already is drawn less; without its weight only images with another class come."""
    data = DetectionData(data_yaml, image_size=SIZE, batch_size=4, workers=0, image_weights=True)
    data.setup("fit")
    sampler = data.train_dataloader().batch_sampler
    data.class_maps = [1.0, 1.0, 0.0]
    order = sampler.order(0)
    assert len(order) == 8
    assert {i for i in order.tolist() if 2 not in (i % 3, (i + 1) % 3)} == set()
    assert len(set(order.tolist())) > 1


# ---- Rectangular batches


@given(st.lists(st.tuples(st.integers(10, 900), st.integers(10, 900)), min_size=1, max_size=30), st.integers(1, 8))
@few
def test_rectangular_batches(shapes: list[tuple[int, int]], batch_size: int) -> None:
    given_shapes = np.array(shapes)
    batches, per_image = rectangular_batches(given_shapes, 320, batch_size, 32, 0.0)
    assert sorted(i for batch in batches for i in batch) == list(range(len(shapes)))
    assert [len(b) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
    ratios = [shapes[i][0] / shapes[i][1] for batch in batches for i in batch]
    assert ratios == sorted(ratios)
    assert (per_image % 32 == 0).all()
    for batch in batches:
        (height, width) = per_image[batch[0]].tolist()
        assert (per_image[batch] == (height, width)).all()
        assert max(height, width) == 320
        need_height = max(320 * min(shapes[i][0] / shapes[i][1], 1) for i in batch)
        need_width = max(320 * min(shapes[i][1] / shapes[i][0], 1) for i in batch)
        assert height >= need_height - 1e-6
        assert width >= need_width - 1e-6
        if all(h < w for h, w in (shapes[i] for i in batch)):
            assert height - need_height < 32 + 1e-6
        if all(h > w for h, w in (shapes[i] for i in batch)):
            assert width - need_width < 32 + 1e-6


def test_rectangular_training(data_yaml: str) -> None:
    """Height over width: 20/60, 30/64, 40/64, then 50/50 and 64/64, then 48/40, 90/70, 64/33, in batches of three.

    Least rectangles of 64 pixels in steps of 32: 64 * 40/64 = 40 -> 64 high; the second holds ratios 1 and above: 64 x 64;
    the third: 64 / (90/70) = 49.8 -> 64 wide.
    """
    data = DetectionData(data_yaml, image_size=128, batch_size=2, workers=0, rect=True, augment=Augment(mosaic=1.0))
    data.setup("fit")
    loader = data.train_dataloader()
    sampler = loader.batch_sampler
    # ratios: 0.33 0.47 | 0.625 1 (the smaller of the two squares) | 1 1.2 | 1.29 1.94
    expected = [[3, 0], [7, 5], [1, 2], [6, 4]]
    assert [[i for _, i, _ in keys] for keys in sampler.batches(0)] == expected
    assert [[i for _, i, _ in keys] for keys in sampler.batches(5)] == expected, "no shuffle"
    batches = list(loader)
    assert [b.indices for b in batches] == expected
    # 128 * 0.469 = 60 -> 64; up to ratio 1; from ratio 1; 128 / 1.286 = 99.6 -> 128
    assert [tuple(b.images.shape) for b in batches] == [(2, 3, 64, 128), (2, 3, 128, 128), (2, 3, 128, 128), (2, 3, 128, 128)]
    assert all(len(b.targets) > 0 for b in batches)


# ---- Collate


def test_collate_in_numbers() -> None:
    boxes = np.array([[-5, 10, 70, 200], [20, 5, 40, 25], [150, 60, 160, 70]], np.float32)
    a = Sample(noise(50, 100, 1), boxes, np.array([2, 0, 1]), frame=Frame(50, 100), index=7)
    b = Sample(noise(50, 100, 2), np.zeros((0, 4), np.float32), np.zeros(0, np.int64), index=3)
    c = flip(Sample(noise(50, 100, 3), np.array([[0, 0, 100, 50]], np.float32), np.array([4]), index=5), 1)
    batch = collate([a, b, c])
    assert (batch.images.shape, batch.images.dtype) == ((3, 3, 50, 100), torch.uint8)
    for k, s in enumerate((a, b, c)):
        assert np.array_equal(batch.images[k].numpy(), s.image.transpose(2, 0, 1)), "channels first, RGB"
    right, bottom = 100 - 1e-3, 50 - 1e-3
    expected = [
        [0, 2, 70 / 2 / 100, (10 + bottom) / 2 / 50, 70 / 100, (bottom - 10) / 50],
        [0, 0, 0.3, 0.3, 0.2, 0.4],
        [0, 1, right / 100, bottom / 50, 0, 0],  # outside: on the last pixel, without size
        [2, 4, right / 2 / 100, bottom / 2 / 50, right / 100, bottom / 50],
    ]
    assert batch.targets.dtype == torch.float32
    np.testing.assert_allclose(batch.targets, expected, rtol=0, atol=1e-6)
    assert (batch.targets[:, 2:4] < 1).all(), "a centre lies in a cell of the grid"
    assert batch.indices == [7, 3, 5]
    assert batch.frames == [Frame(50, 100), None, None]
    assert batch.truths == [None, None, None]


def test_collate_without_any_object() -> None:
    empty = Sample(noise(8, 8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    batch = collate([empty, empty])
    assert batch.targets.shape == (0, 6)
    assert batch.targets.dtype == torch.float32


@given(seeds, st.integers(1, 4), st.sampled_from([(32, 32), (64, 96), (640, 640)]))
@few
def test_collate_gives_the_boxes_back(seed: int, n: int, shape: tuple[int, int]) -> None:
    height, width = shape
    samples = [random_sample(seed + k, 32, 32, n=k) for k in range(n)]
    for k, s in enumerate(samples):
        s.image, s.boxes = np.zeros((height, width, 3), np.uint8), random_boxes(np.random.default_rng(k), k, width, height)
    targets = collate(samples).targets.numpy()
    assert targets[:, 0].tolist() == [k for k in range(n) for _ in range(k)]
    assert targets[:, 1].tolist() == [float(c) for s in samples for c in s.classes]
    boxes = np.concatenate([s.boxes for s in samples])
    np.testing.assert_allclose(cxcywhn_to_xyxy(targets[:, 2:], width, height), boxes, rtol=0, atol=2e-3)


def test_device_hook_scales_to_one(data_yaml: str) -> None:
    batch = collate([Sample(np.full((8, 8, 3), 51, np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))])
    moved = DetectionData(data_yaml, workers=0).on_after_batch_transfer(batch, 0)
    assert moved.images.dtype == torch.float32
    assert moved.images.unique().tolist() == [pytest.approx(0.2)]


def test_steps_in_order() -> None:
    names: Callable[[list[Any]], list[str]] = lambda steps: [type(s).__name__ for s in steps]  # noqa: E731
    tail = ["RandomHSV", "RandomFlip", "RandomFlip"]
    assert names(Augment().steps(64)) == ["Resize", "Mosaic", "CopyPaste", "RandomPerspective", "MixUp", *tail]
    assert names(Augment().steps(64, np.array([[64, 64]]))) == ["Resize", "Letterbox", "CopyPaste", "RandomPerspective", *tail]
    with_library = names(Augment(albumentations=[{"Blur": {}}]).steps(64))
    assert with_library == ["Resize", "Mosaic", "CopyPaste", "RandomPerspective", "MixUp", "Albumentations", *tail]
