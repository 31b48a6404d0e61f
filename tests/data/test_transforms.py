"""The steps of the augmentation, one by one: chances and errors; pixels and boxes are those of
tests/golden."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from made_datasets import picture
from made_runs import column
from made_samples import assert_same, painted, random_sample

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms import mixing
from boltbox.detector.data.transforms.colour import (
    Albumentations,
    RandomHSV,
    _multiply,
    flip,
)
from boltbox.detector.data.transforms.mixing import CopyPaste, MixUp, Mosaic, mixup
from boltbox.detector.data.transforms.perspective import is_candidate
from boltbox.detector.system.errors import InputError


def generator(seed=0):
    return np.random.default_rng(seed)


def bare(height, width):
    """An image without objects."""
    return Sample(picture(height, width), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))


@pytest.mark.parametrize("gains", [(1, 1, 1), (1.013, 1.4, 0.61), (0.9, 0.3, 1.7), (1.5, 1, 1)])
def test_channels_are_multiplied_and_rounded_down(gains):
    """The fast way and the table give the same. Hues are circular, the others have a limit."""
    levels = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, -1)
    ours = _multiply(levels, gains)[0].astype(int)
    expected = np.floor(np.arange(256)[:, None] * gains)
    assert np.array_equal(ours[:180, 0] % 180, expected[:180, 0] % 180)
    assert np.array_equal(ours[:, 1:], expected[:, 1:].clip(0, 255))


def test_hsv():
    """The chances; the pixels are those of tests/golden."""
    sample = painted(4, 4, 0, 0, 4, 4)
    sample.image[:] = 100
    assert RandomHSV(0, 0, 0)(sample, generator()) is sample
    rng = generator()
    values = [RandomHSV(0, 0, 0.4)(sample, rng).image[0, 0, 0] for _ in range(100)]
    assert min(values) in range(60, 65)
    assert max(values) in range(135, 141)


def with_transform(name, sample, **options):
    return Albumentations([{name: options}])(sample, generator())


def test_albumentations_moves_clips_and_drops_boxes():
    sample = random_sample(3, 30, 50, polygons=False)
    mirrored = with_transform("HorizontalFlip", sample, p=1)
    assert np.array_equal(mirrored.image, sample.image[:, ::-1])
    np.testing.assert_allclose(mirrored.boxes, flip(sample, 1).boxes, atol=1e-3)
    assert mirrored.classes.tolist() == sample.classes.tolist()
    assert (mirrored.boxes.dtype, mirrored.classes.dtype) == (np.float32, np.int64)
    assert with_transform("HorizontalFlip", bare(20, 20), p=1).boxes.shape == (0, 4)

    boxes = [[-5, -5, 10, 10], [20, 5, 20, 9], [60, 5, 70, 9], [5, 5, 45, 35], [30, 2, 39, 9]]
    sample = Sample(picture(40, 50), np.array(boxes, np.float32), np.arange(5))
    assert with_transform("Blur", sample, p=0).classes.tolist() == [0, 3, 4], "no size; outside"
    shift = {"translate_px": {"x": 25, "y": 20}, "scale": 1, "rotate": 0, "shear": 0, "p": 1}
    moved = with_transform("Affine", sample, **shift)
    assert moved.boxes.round(3).tolist() == [[25, 20, 35, 30], [30, 25, 50, 40]]
    assert moved.classes.tolist() == [0, 3]
    for name, options in (("CenterCrop", {"height": 20, "width": 25}), ("Normalize", {})):
        with pytest.raises(InputError, match="albumentations"):
            with_transform(name, sample, p=1, **options)


def test_albumentations_decide_each_by_the_generator():
    flips = [{"HorizontalFlip": {"p": 0.5}}, {"VerticalFlip": {"p": 0.5}}]
    sample = random_sample(0, 30, 30)
    step = Albumentations(flips)
    first = [step(sample, generator(k)) for k in range(20)]
    assert len({made.image.tobytes() for made in first}) == 4
    for k in (4, 0, 15):
        assert_same(step(sample, generator(k)), first[k])
    group = Albumentations([{"OneOf": {"transforms": flips, "p": 1}}])
    images = {group(sample, generator(k)).image.tobytes() for k in range(20)}
    assert images == {np.flip(sample.image, axis).tobytes() for axis in (0, 1)}


ERRORS = {  # albumentations, and what the message names
    "[{Blur: {}}, {HorizontalFlop: {p: 1}}]": "HorizontalFlip",
    "[{np: {}}]": "'np'",
    "[{Blur: {p: 2}}]": "p ",
    "[{RandomCrop: {}}]": "height",
    "[{Blur: {blur_limt: 3}}]": "blur_limt",
    "[Blur]": "Blur",
    "[{OneOf: {transforms: [{Blurr: {}}]}}]": "'Blur'",
    "[{OneOf: {transforms: Blur}}]": "Blur",
}


@pytest.mark.parametrize("given", ERRORS)
def test_albumentations_errors(given):
    with pytest.raises(InputError, match=f"albumentations.*{ERRORS[given]}"):
        Albumentations(yaml.safe_load(given))


def test_mosaic_draws_its_partners_and_its_centre(monkeypatch):
    calls = []

    def placed(samples, size, xc, yc, main):
        assert samples[main].index == 0
        assert len(set(column(samples, "index"))) == 4
        calls.append((size, xc, yc, main))

    monkeypatch.setattr(mixing, "mosaic", placed)
    rng = generator()
    for _ in range(200):
        partners = iter([replace(bare(32, 32), index=i) for i in (1, 2, 3)])
        Mosaic(32, 1.0)(replace(bare(32, 32), index=0), rng, partners.__next__)
    size, xc, yc, main = np.array(calls).T
    assert set(size) == {32}
    assert set(main) == {0, 1, 2, 3}
    for centre in (xc, yc):
        assert 16 <= centre.min() < 18
        assert 46 <= centre.max() < 48


def test_mixup():
    """The ratio of Beta(32, 32) has mean 1/2 and standard deviation sqrt(1 / (4 * 65)) = 0.062."""
    blend = mixup(random_sample(1, 12, 15), random_sample(2, 12, 15, n=2), 0.25)
    assert len(blend.polygons) == len(blend.classes) == 5
    white = painted(4, 4, 0, 0, 4, 4)
    black = replace(white, image=white.image * 0)
    rng = generator()
    ratios = [MixUp(1.0)(white, rng, lambda: black).image[0, 0, 0] / 255 for _ in range(300)]
    assert np.mean(ratios) == pytest.approx(0.5, abs=0.02)
    assert np.std(ratios) == pytest.approx(0.062, abs=0.01)
    assert MixUp(0.0)(white, rng, lambda: pytest.fail("nothing is drawn")) is white


@pytest.mark.parametrize(("p", "pasted"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_copy_paste_share(p, pasted):
    """Four small objects whose mirror images meet nobody."""
    boxes = np.array([2, 2, 6, 6], np.float32) + np.arange(0, 40, 10)[:, None] * (0, 1, 0, 1)
    outlines = [[box[[0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)] for box in boxes]
    sample = Sample(picture(40, 40), boxes, np.arange(4), outlines)
    assert len(CopyPaste(p)(sample, generator()).boxes) == 4 + pasted
    without = replace(sample, polygons=[[]] * 4)
    assert CopyPaste(p)(without, generator()) is without


def test_what_is_left_of_a_box():
    """More than 2 px wide and high, and 100 of 1000 square pixels; less than 100 times as long."""
    limits = np.array([[0, 0, 2, 60], [0, 0, 60, 2], [0, 0, 10, 10], [0, 0, 300, 3]], float)
    before = np.array([[0, 0, 20, 50.0]]).repeat(4, 0)
    assert not is_candidate(before, limits).any()
    assert is_candidate(before, limits + (0, 0, 0.1, 0.1)).all()
