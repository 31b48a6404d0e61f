"""Large images in overlapping tiles: their positions, and how detections of all tiles are merged.

A window is the rectangle x1, y1, x2, y2 of the image's pixels that the network gets at once: a tile
or the full image. All boxes are xyxy pixels of the image.

Merging: do two detections of one class agree *where both windows looked*? Both boxes are clipped to
the intersection of their windows, and their IoU is measured there. For boxes inside it this is the
usual IoU. A fragment that a tile's border cuts off equals the clipped complete box, however small
it is, which plain IoU does not see; and a small object inside a large one of its class stays, which
intersection over the smaller area would drop. Of detections that agree, complete boxes come before
fragments, then the more confident one; it gets the best score of all. Fragments without a complete
box (of an object larger than the overlap) that agree are joined to the box around them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from boltbox.detector.model.boxes import pairwise_iou_xyxy

OVERLAP = 0.2  # minimum share of a tile that neighbours have in common, unless another is given
EDGE = 0.01  # a box is cut if it ends this near to its window's border, as a share of its side
AT_ONCE = 250_000  # pairs of boxes that are compared together
MIN_SIDE = 1.0  # pixels; boxes that have less in common, in width or height, are not compared


class Tiles(NamedTuple):
    """The tiles of a detector.

    Attributes:
        size: of their sides in pixels of the image file.
        overlap: minimum share of a tile that neighbours have in common.
    """

    size: int
    overlap: float = OVERLAP

    def __str__(self) -> str:
        overlap = "" if self.overlap == OVERLAP else f", overlap {self.overlap:g}"
        return f"{self.size} px{overlap}"


def tiles_of(values: Sequence[float]) -> Tiles:
    """Of what a file says.

    Args:
        values: Their size and overlap.

    Raises:
        ValueError, TypeError: It is no size with an overlap.
    """
    size, overlap = values
    if not (size >= 1 and 0 <= overlap < 1):
        raise ValueError(f"tiles {values}")
    return Tiles(int(size), float(overlap))


def tile_windows(height: int, width: int, tile: int, overlap: float = OVERLAP) -> np.ndarray:
    """(n, 4) int64 windows x1, y1, x2, y2 of equal size that cover an image, row by row. Along each
    side they are evenly spread from border to border; neighbours share at least `overlap` of a
    tile.

    >>> tile_windows(640, 1280, 640).tolist()
    [[0, 0, 640, 640], [320, 0, 960, 640], [640, 0, 1280, 640]]
    """
    step = max(int(tile * (1 - overlap)), 1)
    starts = []
    for length in (width, height):
        last = max(length - tile, 0)
        starts.append(np.linspace(0, last, math.ceil(last / step) + 1).astype(np.int64))
    x1, y1 = np.meshgrid(*starts)
    x2 = x1 + min(tile, width)
    y2 = y1 + min(tile, height)
    return np.stack((x1, y1, x2, y2), -1).reshape(-1, 4)


def merge(
    rows: np.ndarray,
    windows: np.ndarray,
    size: tuple[int, int],
    iou: float,
    max_det: int,
    agnostic: bool = False,
) -> np.ndarray:
    """The detections of an image, each object once.

    Args:
        rows: (n, 6) x1, y1, x2, y2 in pixels of the image, score, class: of all windows.
        windows: (n, 4) the window of each.
        size: (height, width) of the image.
        iou: boxes that overlap by more than this, where both windows looked, are one object.
        max_det: maximum detections.
        agnostic: compare across classes.

    Returns:
        (m, 6), best first, in the dtype of `rows`.
    """
    if len(rows) == 0:
        return rows
    dtype = rows.dtype
    rows = rows.astype(np.float64)
    windows = windows.astype(np.float64)
    cut = is_cut(rows[:, :4], windows, *size)
    order = np.lexsort((-rows[:, 4], cut))  # complete ones first, then by score
    rows = rows[order]
    cut = cut[order]
    boxes, scores, classes = np.split(rows, (4, 5), axis=1)
    groups = classes[:, 0] * (not agnostic)
    agreeing = agreeing_boxes(boxes, windows[order], groups, iou)
    owner = np.full(len(rows), -1)  # the detection that each one belongs to
    for i in range(len(rows)):
        if owner[i] >= 0:
            continue
        owner[i] = i
        to_compare = [i]
        while to_compare:
            same = agreeing[to_compare.pop()]
            same = same[owner[same] < 0]
            owner[same] = i
            if cut[i]:  # fragments that agree with these belong to them too
                to_compare += same.tolist()
    first = owner == np.arange(len(rows))
    joined = first | cut[owner]
    np.minimum.at(boxes[:, :2], owner[joined], boxes[joined, :2])
    np.maximum.at(boxes[:, 2:], owner[joined], boxes[joined, 2:])
    np.maximum.at(scores, owner, scores.copy())  # a fragment may have been more confident
    detections = rows[first]
    best_first = np.lexsort((groups[first], -detections[:, 4]))  # equal scores by class
    return detections[best_first[:max_det]].astype(dtype)


def is_cut(boxes: np.ndarray, windows: np.ndarray, height: int, width: int) -> np.ndarray:
    """(n,) bool: whether a box (n, 4) ends at a border of its window (n, 4) that is not a border of
    the image."""
    margin = (windows[:, 2:] - windows[:, :2]) * EDGE
    low = (boxes[:, :2] <= windows[:, :2] + margin) & (windows[:, :2] > 0)
    high = (boxes[:, 2:] >= windows[:, 2:] - margin) & (windows[:, 2:] < (width, height))
    return (low | high).any(1)


def agreeing_boxes(
    boxes: np.ndarray, windows: np.ndarray, groups: np.ndarray, iou: float
) -> list[np.ndarray]:
    """The boxes that each box agrees with: those of its group and of another window whose IoU with
    it, where both windows looked, is more than `iou`.

    Args:
        boxes: (n, 4).
        windows: (n, 4) of each box; NMS has compared the boxes of one window.
        groups: (n,).
        iou: minimum.

    Returns:
        Per box the numbers of the others, in no order.
    """
    places, window_of = np.unique(windows, axis=0, return_inverse=True)
    window_of = window_of.ravel()
    members = np.split(np.argsort(window_of), np.bincount(window_of).cumsum())
    pairs = [np.zeros((2, 0), np.int64)]
    for k, place in enumerate(places):
        low = np.maximum(place[:2], places[:k, :2])
        high = np.minimum(place[2:], places[:k, 2:])
        regions = np.concatenate((low, high), 1)  # where this window and each before it looked
        for other in np.flatnonzero((high > low).all(1)):
            i, a = within(boxes, members[k], regions[other])
            j, b = within(boxes, members[other], regions[other])
            for part in np.array_split(np.arange(len(i)), len(i) * len(j) // AT_ONCE + 1):
                agree = pairwise_iou_xyxy(a[part], b) > iou
                first, second = np.nonzero(agree & (groups[i[part], None] == groups[j]))
                pairs.append(np.stack((i[part][first], j[second])))
    pair = np.concatenate(pairs, 1)
    one, other = np.concatenate((pair, pair[::-1]), 1)
    return np.split(other[np.argsort(one)], np.bincount(one, minlength=len(boxes)).cumsum())


def within(
    boxes: np.ndarray, numbers: np.ndarray, region: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Those of the boxes (n, 4) with these numbers that have more than next to nothing in a region
    (4,): their numbers, and they themselves, clipped to it."""
    clipped = np.clip(boxes[numbers], np.tile(region[:2], 2), np.tile(region[2:], 2))
    kept = (clipped[:, 2:] - clipped[:, :2] >= MIN_SIDE).all(1)
    return numbers[kept], clipped[kept]
