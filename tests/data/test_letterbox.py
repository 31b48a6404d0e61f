"""Resize and letterbox: sizes and padding by property, boxes that follow the pixels and lead back
to the file."""

from dataclasses import replace

import cv2
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from made_samples import few, painted, random_boxes, seeds, white_box

from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.data.transforms.letterbox import (
    GREY,
    Letterbox,
    letterbox,
    letterbox_sample,
    resize_longest,
)

sides = st.integers(10, 600)
targets = st.sampled_from([64, 96, 128, 320])


@given(seeds, sides, sides, targets, targets, targets, st.booleans())
@few
def test_frame_leads_back_to_the_file(
    seed: int,
    height: int,
    width: int,
    size: int,
    out_height: int,
    out_width: int,
    scaleup: bool,
) -> None:
    assume(max(height, width) <= 12 * min(height, width))
    boxes = random_boxes(np.random.default_rng(seed), 4, width, height)
    sample = Sample(
        np.zeros((height, width, 3), np.uint8),
        boxes,
        np.arange(4),
        letterbox=LetterboxInfo(height, width),
        index=0,
    )
    # else it must shrink, which is covered by scaleup
    assume(scaleup or size <= min(out_height, out_width))
    resized = resize_longest(sample, size)
    sample = letterbox_sample(resized, (out_height, out_width), scaleup)
    assert sample.size == (out_height, out_width)
    assert sample.boxes.dtype == np.float32
    assert sample.boxes.min() >= -1e-3
    assert (sample.boxes <= np.array((out_width, out_height) * 2) + 1).all()
    assert sample.letterbox is not None
    back = sample.letterbox.to_file(sample.boxes)
    np.testing.assert_allclose(back, boxes, rtol=0, atol=1e-3)
    assert back.dtype == np.float32


def test_frame_in_numbers() -> None:
    letterbox = LetterboxInfo(100, 200).moved(0.5, 0.25, 10, 20)
    assert letterbox == (100, 200, 0.5, 0.25, 10, 20)
    assert letterbox.moved(2, 4, 0, 0) == (100, 200, 1, 1, 20, 80)
    # x: (20 - 10) / 0.5 = 20, (200 - 10) / 0.5 = 380, of at most 200; y: (20 - 20) / 0.25 = 0, (30
    # - 20) / 0.25 = 40
    assert letterbox.to_file(np.array([[20.0, 20, 200, 30]])).tolist() == [[20, 0, 200, 40]]


@given(sides, sides, targets)
@few
def test_longer_side_is_exact_and_the_shorter_rounded_up(
    height: int, width: int, size: int
) -> None:
    sample = Sample(
        np.zeros((height, width, 3), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    )
    image = resize_longest(sample, size).image
    longer = max(height, width)
    shorter = min(height, width)
    whole = -(-shorter * size // longer)  # in integers: no rounding to speak of
    assert image.shape[:2] == ((size, whole) if height >= width else (whole, size))


@given(sides, sides, targets, targets, st.booleans())
@few
def test_letterbox_keeps_the_aspect(
    height: int, width: int, out_height: int, out_width: int, scaleup: bool
) -> None:
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
    assert (out_width - w, out_height - h) == (2 * pad_x, 2 * pad_y), (
        "what is left over is shared by both sides"
    )
    assert (image == 255).all(-1).sum() == w * h, "one whole rectangle"


@given(st.integers(80, 300), st.integers(80, 300), targets, targets, targets)
@few
def test_labels_follow_the_pixels_through_resize_and_letterbox(
    height: int, width: int, size: int, out_height: int, out_width: int
) -> None:
    sample = painted(height, width, width // 5, height // 4, width * 4 // 5, height // 2)
    resized = replace(resize_longest(sample, size), index=0)
    sample = Letterbox(np.array([[out_height, out_width]]))(resized)
    # A pixel for the edges' blur, one for the padding's half pixel and the rounded size; both of the
    # smaller image, if it was made larger again.
    larger = max(out_height, out_width) / size
    np.testing.assert_allclose(
        white_box(sample.image), sample.boxes[0], rtol=0, atol=2 * max(larger, 1)
    )
