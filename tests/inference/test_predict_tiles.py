"""Tiles: where they lie, and one list of detections out of those of all."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, tile_samples
from boltbox.detector.data.inputs.tiles import MIN_SIDE, Tiles, is_cut, merge, tile_windows
from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.model.boxes import pairwise_iou_xyxy

sides = st.integers(33, 3000)


@given(sides, sides, st.integers(32, 1000))
def test_windows_cover_the_image(height, width, tile):
    windows = tile_windows(height, width, tile)
    assert len(np.unique(windows[:, 2:] - windows[:, :2], axis=0)) == 1  # a batch has one shape
    number = 1
    for axis, side in ((0, width), (1, height)):
        starts = np.unique(windows[:, axis])
        number *= len(starts)
        assert starts[0] == 0
        assert windows[:, axis + 2].max() == side == starts[-1] + min(tile, side)
        assert (np.diff(starts) <= max(int(tile * 0.8), 1)).all(), (
            "neighbours share at least the overlap"
        )
    assert len(windows) == number


@settings(max_examples=20)
@given(st.integers(65, 400), st.integers(65, 400), st.integers(0, 2**32 - 1))
def test_pixels_and_boxes_come_back_exactly(height, width, seed):
    """What a tile of the network's size shows is the image's own pixels, and a box found in it
    comes back to the bit."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    inputs = EvaluationInput(64, 32, tiles=Tiles(64))
    batch = inputs.batch([Sample(image, *none, letterbox=LetterboxInfo(height, width), index=5)])
    assert batch.indices == [5]
    assert batch.windows[0].tolist() == [0, 0, width, height]
    tiles = tile_samples(batch, 1, len(batch.windows))
    for tile, window in zip(tiles, batch.windows[1:], strict=True):
        x1, y1, x2, y2 = window
        np.testing.assert_array_equal(tile.image, image[y1:y2, x1:x2])
        box = np.array([[1, 2.125, 60.5, 64]], np.float32)  # eighths are exact
        np.testing.assert_array_equal(tile.letterbox.to_file(box), box + np.array((x1, y1, x1, y1)))


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([(20, 30), (8, 40), (70, 12), (200, 10), (16, 150)])
)
def test_fragments_become_whole_again(seed, size):
    """Objects smaller than the overlap, and longer than a tile, side by side in a grid, as a perfect
    detector sees them in each window: each comes back once, exactly."""
    rng = np.random.default_rng(seed)
    width, height = size
    x, y = np.meshgrid(
        np.arange(5, 395 - width, width + 12), np.arange(5, 295 - height, height + 12)
    )
    low = np.stack((x.ravel(), y.ravel()), 1) + rng.integers(0, 6, (x.size, 2))
    n = len(low)
    objects = np.column_stack((low, low + size, rng.uniform(0.3, 0.9, n), rng.integers(0, 2, n)))
    fragments = []
    windows = []
    for window in tile_windows(300, 400, 128):
        clipped = objects.copy()
        clipped[:, :4] = objects[:, :4].clip(np.tile(window[:2], 2), np.tile(window[2:], 2))
        seen = clipped[(clipped[:, 2:4] - clipped[:, :2]).min(1) >= 2]
        fragments.append(seen)
        windows.append(np.tile(window, (len(seen), 1)))
    rows = np.concatenate(fragments).astype(np.float32)
    assert len(rows) > n
    order = rng.permutation(len(rows))
    merged = merge(rows[order], np.concatenate(windows)[order], (300, 400), iou=0.5, max_det=1000)
    expected = objects[np.lexsort((objects[:, 0], objects[:, 1]))].astype(np.float32)
    np.testing.assert_array_equal(merged[np.lexsort((merged[:, 0], merged[:, 1]))], expected)


def test_the_border_of_the_image_cuts_nothing():
    boxes = np.array([[0, 0, 20, 20], [100, 10, 120, 30], [80, 10, 90, 100]], float)
    left = [0, 0, 120, 100]
    windows = np.array([left, left, [80, 0, 200, 100]])
    assert is_cut(boxes, windows, 100, 200).tolist() == [False, True, True]


def merge_one_by_one(rows, windows, size, iou, agnostic):
    """As `merge`: each detection is compared with each other."""
    cut = is_cut(rows[:, :4], windows, *size)
    order = np.lexsort((-rows[:, 4], cut))
    left = order.tolist()
    merged = []
    while left:
        best = left.pop(0)
        members = [best]
        for member in members if cut[best] else [best]:
            for other in left.copy():
                low = np.maximum(windows[member, :2], windows[other, :2])
                high = np.minimum(windows[member, 2:], windows[other, 2:])
                region = np.concatenate((low, high))
                two = rows[[member, other], :4].clip(np.tile(region[:2], 2), np.tile(region[2:], 2))
                same_window = (windows[member] == windows[other]).all()
                if same_window or (two[:, 2:] - two[:, :2]).min() < MIN_SIDE:
                    continue
                same_class = agnostic or rows[best, 5] == rows[other, 5]
                if same_class and pairwise_iou_xyxy(two[:1], two[1:]) > iou:
                    members.append(other)
                    left.remove(other)
        own = rows[members if cut[best] else [best], :4]
        hull = np.concatenate((own[:, :2].min(0), own[:, 2:].max(0)))
        merged.append([*hull, rows[members, 4].max(), rows[best, 5]])
    return np.array(merged)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([20, 90, 300]),
    st.booleans(),
    st.sampled_from([3, 1000]),
)
def test_merging_compares_all_that_agree(seed, largest, agnostic, most):
    rng = np.random.default_rng(seed)
    places = np.concatenate(([[0, 0, 200, 150]], tile_windows(150, 200, 80)))
    windows = np.repeat(places, 6, 0)
    low = rng.uniform(windows[:, :2], windows[:, 2:])
    boxes = np.concatenate((low, low + rng.uniform(2, largest, low.shape)), 1)
    boxes = boxes.clip(np.tile(windows[:, :2], 2), np.tile(windows[:, 2:], 2))
    scores = rng.permutation(len(boxes)) / len(boxes)
    rows = np.column_stack((boxes, scores, rng.integers(0, 2, len(boxes))))
    iou = rng.choice([0, 0.3, 0.7])
    expected = merge_one_by_one(rows, windows, (150, 200), iou, agnostic)
    expected = expected[np.argsort(-expected[:, 4])][:most]
    found = merge(rows, windows, (150, 200), iou, most, agnostic)
    np.testing.assert_array_equal(found, expected)
