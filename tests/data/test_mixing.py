"""MixUp and copy-paste: pixels, labels and how often."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_samples import assert_same, few, noise, painted, random_sample, seeds

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.mixing import CopyPaste, MixUp, copy_paste, mixup


@given(seeds, st.floats(0, 1))
@few
def test_mixup(seed: int, ratio: float) -> None:
    a = random_sample(seed, 12, 15)
    b = random_sample(seed + 1, 12, 15, n=2)
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
    white = painted(10, 10, 0, 0, 10, 10)
    black = painted(10, 10, 0, 0, 10, 10)
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

    # Those that are pasted: candidates with a polygon, in order, that cover less than 0.3 of each
    # box so far, pasted included.
    boxes = list(sample.boxes)
    classes = sample.classes.tolist()
    may_change = np.zeros((40, 60), bool)
    for i in candidates:
        x1, y1, x2, y2 = sample.boxes[i].tolist()
        x1, x2 = 60 - x2, 60 - x1
        covered = [
            max(min(x2, b[2]) - max(x1, b[0]), 0)
            * max(min(y2, b[3]) - max(y1, b[1]), 0)
            / ((b[2] - b[0]) * (b[3] - b[1]))
            for b in boxes
        ]
        if sample.polygons[i] and max(covered) < 0.3:
            boxes.append(np.array((x1, y1, x2, y2)))
            classes.append(int(sample.classes[i]))
            may_change[max(int(y1) - 1, 0) : int(y2) + 2, max(int(x1) - 1, 0) : int(x2) + 2] = True
    np.testing.assert_allclose(pasted.boxes, boxes, rtol=0, atol=1e-4)
    assert pasted.classes.tolist() == classes
    mirrored = sample.image[:, ::-1]
    changed = (pasted.image != sample.image).any(-1)
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
