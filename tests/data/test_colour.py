"""Flips, HSV and the steps of Albumentations: pixels, boxes, chances, errors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_samples import assert_same, few, noise, random_sample, seeds

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.colour import (
    Albumentations,
    RandomFlip,
    RandomHSV,
    _multiply,
    adjust_hsv,
    flip,
)
from boltbox.detector.system.errors import InputError


@given(seeds, st.integers(10, 60), st.integers(10, 60), st.sampled_from([0, 1]))
@few
def test_flip_twice_is_the_identity(seed: int, height: int, width: int, axis: int) -> None:
    sample = random_sample(seed, height, width)
    sample.boxes = sample.boxes.round(0)  # whole numbers are exact in float32
    sample.polygons = [[part.round(0) for part in parts] for parts in sample.polygons]
    once = flip(sample, axis)
    assert np.array_equal(once.image, np.flip(sample.image, axis))
    assert (once.boxes[:, 2:] >= once.boxes[:, :2]).all()
    assert_same(flip(once, axis), replace(sample, letterbox=None))


def test_flip_in_numbers() -> None:
    triangle = np.array(((1, 2), (4, 2), (4, 8)), np.float32)
    sample = Sample(
        noise(20, 10), np.array([[1, 2, 4, 8]], np.float32), np.array([3]), [[triangle]]
    )
    left_right = flip(sample, 1)
    upside_down = flip(sample, 0)
    assert left_right.boxes.tolist() == [[6, 2, 9, 8]]  # 10 - 4, 10 - 1
    assert left_right.polygons[0][0].tolist() == [[9, 2], [6, 2], [6, 8]]
    assert upside_down.boxes.tolist() == [[1, 12, 4, 18]]  # 20 - 8, 20 - 2
    assert upside_down.polygons[0][0].tolist() == [[1, 18], [4, 18], [4, 12]]
    assert np.array_equal(left_right.image[:, 6:9], sample.image[:, 3:0:-1]), (
        "the box holds the same pixels"
    )
    assert sample.boxes.tolist() == [[1, 2, 4, 8]], "the input is not touched"


@pytest.mark.parametrize(("p", "share"), [(0.0, 0), (1.0, 400), (0.25, 100)])
def test_flip_probability(p: float, share: int) -> None:
    sample = random_sample(0, 10, 12)
    rng = np.random.default_rng(0)
    flipped = sum(RandomFlip(1, p)(sample, rng) is not sample for _ in range(400))
    # four standard deviations: 4 sqrt(400 * 0.25 * 0.75)
    assert abs(flipped - share) <= (0 if p in (0, 1) else 35)


def test_hsv_gains_of_one_change_nearly_nothing() -> None:
    """Hue is kept in steps of 2 degrees, of which 60 take a channel through 255: rounding by half a
    step moves it by 4.25."""
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
def test_hsv_in_numbers(
    colour: tuple[int, ...], gains: tuple[float, ...], expected: tuple[int, ...]
) -> None:
    assert adjust_hsv(np.array([[colour]], np.uint8), gains)[0, 0].tolist() == list(expected)


@given(st.tuples(st.floats(0.5, 2), st.floats(0, 2), st.floats(0, 2)))
@few
def test_each_level_times_its_gain(gains: tuple[float, float, float]) -> None:
    """Rounded down, whichever of the two ways it goes; a hue of 180 or more stands for one from 0
    on."""
    levels = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, -1)
    ours = _multiply(levels, gains)[0].astype(int)
    wanted = np.floor(np.arange(256)[:, None] * gains)
    assert np.array_equal(ours[:180, 0] % 180, wanted[:180, 0] % 180)
    assert np.array_equal(ours[:, 1:], wanted[:, 1:].clip(0, 255))


def test_hsv_off_changes_nothing() -> None:
    sample = random_sample(0, 10, 10)
    assert RandomHSV(0, 0, 0)(sample, np.random.default_rng(0)) is sample
    changed = RandomHSV(0, 0, 0.4)(sample, np.random.default_rng(0))
    assert not np.array_equal(changed.image, sample.image)
    assert np.array_equal(changed.boxes, sample.boxes)


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
    boxes = np.array(
        [[-5, -5, 10, 10], [20, 5, 20, 9], [60, 5, 70, 9], [5, 5, 45, 35], [30, 2, 39, 9]],
        np.float32,
    )
    sample = Sample(noise(40, 50), boxes, np.array([1, 2, 3, 4, 5]))
    kept = with_transform("Blur", sample, p=0)
    assert kept.boxes.round(3).tolist() == [[0, 0, 10, 10], [5, 5, 45, 35], [30, 2, 39, 9]], (
        "no size; outside"
    )
    assert kept.classes.tolist() == [1, 4, 5]
    shift = {"translate_px": {"x": 25, "y": 20}, "scale": 1, "rotate": 0, "shear": 0, "p": 1}
    moved = with_transform("Affine", sample, **shift)
    assert moved.boxes.round(3).tolist() == [[25, 20, 35, 30], [30, 25, 50, 40]]
    assert moved.classes.tolist() == [1, 4]
    for name, options in (("CenterCrop", {"height": 20, "width": 25}), ("Normalize", {})):
        with pytest.raises(InputError, match=r"40x50 pixels of uint8 have become .*; leave out"):
            with_transform(name, sample, p=1, **options)


def test_albumentations_without_objects() -> None:
    empty = Sample(noise(20, 20), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    changed = with_transform("HorizontalFlip", empty, p=1)
    assert changed.boxes.shape == (0, 4)
    assert changed.classes.shape == (0,)


def test_albumentations_follows_the_given_generator() -> None:
    step = Albumentations(
        [{"RandomBrightnessContrast": {"p": 0.5}}, {"Affine": {"rotate": [-30, 30], "p": 0.5}}]
    )
    sample = random_sample(0, 30, 30)
    first = [step(sample, np.random.default_rng(k)) for k in range(6)]
    for k in (4, 0, 5):
        assert_same(step(sample, np.random.default_rng(k)), first[k])
    assert len({s.image.tobytes() for s in first}) > 2


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ([{"Blurr": {}}], ["no 'Blurr'", "did you mean 'Blur'?"]),
        (
            [{"Blur": {}}, {"HorizontalFlop": {"p": 1}}],
            ["'HorizontalFlop'", "did you mean 'HorizontalFlip'?"],
        ),
        ([{"np": {}}], ["no 'np'"]),
        ([{"Blur": {"p": 2}}], ["Blur", "p ", "less than or equal to 1"]),
        ([{"Blur": {"blur_limit": "wide"}}], ["Blur", "blur_limit"]),
        ([{"RandomCrop": {}}], ["RandomCrop", "height", "width"]),
        ([{"Blur": 3}], ["Blur"]),
        ([{"Blur": {"blur_limt": 3}}], ["Blur", "blur_limt"]),
        (["Blur"], ["Blur"]),
        ([{"OneOf": {"transforms": [{"Blurr": {}}]}}], ["no 'Blurr'"]),
        ([{"OneOf": {"transforms": "Blur"}}], ["'Blur'"]),
    ],
)
def test_albumentations_errors(transforms: list[Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        Albumentations(transforms)
    assert [word for word in words if word not in str(caught.value)] == []


def test_groups_of_albumentations() -> None:
    """One of the two, never both, and each now and then."""
    step = Albumentations(
        [
            {
                "OneOf": {
                    "transforms": [{"HorizontalFlip": {"p": 1}}, {"VerticalFlip": {"p": 1}}],
                    "p": 1,
                }
            }
        ]
    )
    sample = random_sample(0, 30, 30)
    images = {step(sample, np.random.default_rng(k)).image.tobytes() for k in range(20)}
    assert images == {
        np.ascontiguousarray(np.flip(sample.image, axis)).tobytes() for axis in (0, 1)
    }


def test_albumentations_transforms_decide_each_for_itself() -> None:
    step = Albumentations([{"HorizontalFlip": {"p": 0.5}}, {"VerticalFlip": {"p": 0.5}}])
    sample = random_sample(0, 30, 30)
    assert len({step(sample, np.random.default_rng(k)).image.tobytes() for k in range(40)}) == 4
