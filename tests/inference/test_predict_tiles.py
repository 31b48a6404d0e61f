"""Tiles: where they lie, and one list of detections out of those of all."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from boltbox.detector.data.inputs.evaluation_input import EvaluationInput
from boltbox.detector.data.inputs.tiles import is_cut, merge, tile_starts, tile_windows
from boltbox.detector.data.sample import LetterboxInfo, Sample

sides = st.integers(33, 3000)


@settings(max_examples=60)
@given(sides, sides, st.integers(32, 1000))
def test_windows_cover_the_image(height: int, width: int, tile: int) -> None:
    windows = tile_windows(height, width, tile)
    assert (windows[:, :2] >= 0).all()
    assert (windows[:, 2:] <= (width, height)).all()
    assert len(np.unique(windows[:, 2:] - windows[:, :2], axis=0)) == 1  # a batch has one shape
    for axis, side in ((0, width), (1, height)):
        starts = np.unique(windows[:, axis])
        size = min(tile, side)
        assert starts[0] == 0
        assert starts[-1] + size == side
        assert (np.diff(starts) <= max(int(tile * 0.8), 1)).all(), (
            "neighbours share at least the overlap"
        )
    rows = tile_starts(height, tile)
    columns = tile_starts(width, tile)
    assert len(windows) == len(rows) * len(columns)


@settings(max_examples=25)
@given(st.integers(65, 400), st.integers(65, 400), st.integers(0, 2**32 - 1))
def test_pixels_and_boxes_come_back_exactly(height: int, width: int, seed: int) -> None:
    """What a tile of the network's size shows is the image's own pixels, and a box found in it
    comes back to the bit."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    inputs = EvaluationInput(64, 32, tile=64)
    batch = inputs.batch([Sample(image, *none, letterbox=LetterboxInfo(height, width), index=5)])
    assert batch.indices == [5]
    assert batch.windows is not None
    np.testing.assert_array_equal(batch.windows[0], (0, 0, width, height))
    for pixels, letterbox, window in zip(
        batch.images[1:], batch.letterboxes[1:], batch.windows[1:], strict=True
    ):
        x1, y1, x2, y2 = window
        np.testing.assert_array_equal(pixels.permute(1, 2, 0), image[y1:y2, x1:x2])
        # eighths are exact
        box = (
            np.sort(rng.integers(0, 64 * 8 + 1, (1, 2, 2)) / 8, 1).reshape(1, 4).astype(np.float32)
        )
        assert letterbox is not None
        np.testing.assert_array_equal(letterbox.to_file(box), box + np.array((x1, y1, x1, y1)))


def fragments(
    objects: np.ndarray, windows: np.ndarray, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """What a perfect detector says: every object, clipped to each window in which it has at least
    `least` px either way."""
    rows = []
    sources = []
    for window in windows:
        clipped = objects.copy()
        clipped[:, :4] = objects[:, :4].clip(np.tile(window[:2], 2), np.tile(window[2:], 2))
        seen = (clipped[:, 2:4] - clipped[:, :2]).min(1) >= least
        rows.append(clipped[seen])
        sources.append(np.tile(window, (seen.sum(), 1)))
    return np.concatenate(rows).astype(np.float32), np.concatenate(sources)


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([(20, 30), (8, 40), (70, 12), (200, 10), (16, 150)])
)
def test_fragments_become_whole_again(seed: int, size: tuple[int, int]) -> None:
    """Objects smaller than the overlap, and longer than a tile, side by side in a grid: each comes
    back once, exactly."""
    rng = np.random.default_rng(seed)
    width, height = size
    x, y = np.meshgrid(
        np.arange(5, 395 - width, width + 12), np.arange(5, 295 - height, height + 12)
    )
    low = np.stack((x.ravel(), y.ravel()), 1) + rng.integers(0, 6, (x.size, 2))
    n = len(low)
    objects = np.column_stack((low, low + size, rng.uniform(0.3, 0.9, n), rng.integers(0, 2, n)))
    rows, sources = fragments(objects, tile_windows(300, 400, 128), least=2)
    assert len(rows) > n
    shuffled = rng.permutation(len(rows))
    merged = merge(rows[shuffled], sources[shuffled], (300, 400), iou=0.5, max_det=1000)
    expected = objects[np.lexsort((objects[:, 0], objects[:, 1]))].astype(np.float32)
    np.testing.assert_array_equal(merged[np.lexsort((merged[:, 0], merged[:, 1]))], expected)


WHOLE = np.array([0, 0, 200, 100])
LEFT = np.array([0, 0, 120, 100])
RIGHT = np.array([80, 0, 200, 100])


def test_a_whole_one_stays_before_a_surer_fragment() -> None:
    rows = np.array([[90, 10, 120, 30, 0.9, 0], [90, 10, 140, 30, 0.5, 0]], np.float32)
    merged = merge(rows, np.array([LEFT, RIGHT]), (100, 200), 0.5, 10)
    np.testing.assert_array_equal(merged, np.array([[90, 10, 140, 30, 0.9, 0]], np.float32))


def test_a_small_object_in_a_large_one_stays() -> None:
    """Intersection over the smaller area would drop it."""
    rows = np.array([[5, 5, 195, 95, 0.9, 0], [90, 10, 110, 30, 0.8, 0]], np.float32)
    assert len(merge(rows, np.array([WHOLE, RIGHT]), (100, 200), 0.5, 10)) == 2


def test_classes_and_the_limit() -> None:
    rows = np.array(
        [[90, 10, 110, 30, 0.9, 0], [90, 10, 110, 30, 0.8, 1], [90, 10, 110, 31, 0.7, 1]],
        np.float32,
    )
    windows = np.array([LEFT, RIGHT, WHOLE])
    assert merge(rows, windows, (100, 200), 0.5, 10)[:, 5].tolist() == [0, 1]
    assert merge(rows, windows, (100, 200), 0.5, 10, agnostic=True)[:, 5].tolist() == [0]
    assert merge(rows, windows, (100, 200), 0.5, 1)[:, 5].tolist() == [0]
    assert merge(rows[:0], windows[:0], (100, 200), 0.5, 10).shape == (0, 6)


def test_the_border_of_the_image_cuts_nothing() -> None:
    boxes = np.array([[0, 0, 20, 20], [100, 10, 120, 30], [80, 10, 90, 100]], float)
    np.testing.assert_array_equal(
        is_cut(boxes, np.array([LEFT, LEFT, RIGHT]), 100, 200), [False, True, True]
    )
