"""Mosaic: pixel by pixel, its partners and its centre, and the letterbox in its place."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_samples import few, painted, random_sample, seeds

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.letterbox import GREY
from boltbox.detector.data.transforms.mixing import Mosaic, mosaic


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
            tile_x = x - xc if k % 2 else x - xc + w
            tile_y = y - yc if k > 1 else y - yc + h
            inside = 0 <= tile_x < w and 0 <= tile_y < h
            expected = tiles[k].image[tile_y, tile_x].tolist() if inside else [GREY] * 3
            assert mixed.image[y, x].tolist() == expected
    assert mixed.classes.tolist() == [c for t in tiles for c in t.classes.tolist()]
    assert mixed.boxes.min() >= 0
    assert mixed.boxes.max() <= 16
    shifts = [(xc - w * (k % 2 == 0), yc - h * (k < 2)) for k, (h, w) in enumerate(shapes)]
    boxes = np.concatenate([t.boxes + np.array(s * 2) for t, s in zip(tiles, shifts, strict=True)])
    np.testing.assert_allclose(mixed.boxes, boxes.clip(0, 16), rtol=0, atol=1e-5)
    # every other object has a polygon
    for parts, box in zip(mixed.polygons[::2], mixed.boxes[::2], strict=True):
        np.testing.assert_allclose((*parts[0].min(0), *parts[0].max(0)), box, rtol=0, atol=1e-5)
    assert not any(mixed.polygons[1::2])
    assert mixed.letterbox is None


def test_mosaic_draws_its_partners_and_its_centre() -> None:
    """A tile of one colour each; the colour at a corner of the centre says who lies there."""
    tiles = iter(range(1, 1000))

    def one(value: int) -> Sample:
        return Sample(
            np.full((32, 32, 3), value % 100, np.uint8),
            np.zeros((0, 4), np.float32),
            np.zeros(0, np.int64),
            index=value,
        )

    rng = np.random.default_rng(0)
    centres = set()
    places = Counter[int]()
    for _ in range(60):
        mixed = Mosaic(32, 1.0)(one(0), rng, lambda: one(next(tiles)))
        assert mixed.size == (64, 64)
        assert mixed.index == 0, "that of the sample, not of a partner"
        ys, xs = np.nonzero(mixed.image[..., 0] == 0)
        ends = (int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1)
        left = int(ends[2] - 32 == ends[0] or ends[0] == 0)
        top = int(ends[3] - 32 == ends[1] or ends[1] == 0)
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
        assert got.letterbox is None
    else:
        assert got.size == (32, 32)
        assert got.boxes.tolist() == [[8, 12, 24, 20]]  # (32 - 16) / 2 = 8 lower
        assert got.letterbox == (16, 32, 1, 1, 0, 8)
