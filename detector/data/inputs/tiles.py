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

import numpy as np

from boltbox.detector.model.boxes import EPS, area_xyxy

OVERLAP = 0.2  # minimum share of a tile that neighbours have in common
EDGE = 0.01  # a box is cut if it ends this near to its window's border, as a share of its side
MIN_SIDE = 1.0  # pixels; boxes that have less in common, in width or height, are not compared


def tile_starts(length: int, tile: int) -> np.ndarray:
    """(n,) int64 first pixel of each tile along a side. Tiles are evenly spread; the first begins
    at 0, the last ends at `length`; neighbours share at least OVERLAP of a tile.

    >>> tile_starts(1280, 640).tolist()
    [0, 320, 640]
    """
    last = max(length - tile, 0)
    step = max(int(tile * (1 - OVERLAP)), 1)
    return np.linspace(0, last, math.ceil(last / step) + 1).astype(np.int64)


def tile_windows(height: int, width: int, tile: int) -> np.ndarray:
    """(n, 4) int64 windows x1, y1, x2, y2 of equal size that cover an image, row by row."""
    x1, y1 = np.meshgrid(tile_starts(width, tile), tile_starts(height, tile))
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
    windows = windows[order]
    cut = cut[order]
    boxes = rows[:, :4]
    groups = rows[:, 5] * (not agnostic)
    left, top, right, bottom = boxes.T.copy()
    alive = np.ones(len(rows), bool)
    merged = []
    for i in range(len(rows)):
        if not alive[i]:
            continue
        alive[i] = False
        members = [i]
        to_compare = [i]
        while to_compare:
            k = to_compare.pop()
            x1, y1, x2, y2 = boxes[k]
            apart = (left >= x2) | (right <= x1) | (top >= y2) | (bottom <= y1)
            others = np.flatnonzero(alive & (groups == groups[i]) & ~apart)
            overlap = agreement(boxes[k], windows[k], boxes[others], windows[others])
            same = others[overlap > iou]
            alive[same] = False
            members += same.tolist()
            if cut[i]:  # fragments that agree with these belong to them too
                to_compare += same.tolist()
        joined = boxes[members] if cut[i] else boxes[[i]]
        score = rows[members, 4].max()  # a fragment may have been more confident
        hull = np.concatenate((joined[:, :2].min(0), joined[:, 2:].max(0)))
        merged.append(np.append(hull, (score, rows[i, 5])))
    detections = np.stack(merged)
    classes = detections[:, 5] * (not agnostic)
    best_first = np.lexsort((classes, -detections[:, 4]))  # equal scores by class
    return detections[best_first[:max_det]].astype(dtype)


def is_cut(boxes: np.ndarray, windows: np.ndarray, height: int, width: int) -> np.ndarray:
    """(n,) bool: whether a box (n, 4) ends at a border of its window (n, 4) that is not a border of
    the image."""
    margin = (windows[:, 2:] - windows[:, :2]) * EDGE
    low = (boxes[:, :2] <= windows[:, :2] + margin) & (windows[:, :2] > 0)
    high = (boxes[:, 2:] >= windows[:, 2:] - margin) & (windows[:, 2:] < (width, height))
    return (low | high).any(1)


def agreement(
    box: np.ndarray, window: np.ndarray, boxes: np.ndarray, windows: np.ndarray
) -> np.ndarray:
    """The IoU of a box with others where both windows looked.

    Args:
        box: (4,).
        window: (4,) of the box.
        boxes: (n, 4) the others.
        windows: (n, 4) of the others.

    Returns:
        (n,); 0 for boxes of the same window, which NMS has compared, and where one of the two has
        next to nothing in the intersection of the windows.
    """
    low = np.tile(np.maximum(window[:2], windows[:, :2]), 2)
    high = np.tile(np.minimum(window[2:], windows[:, 2:]), 2)
    a = np.clip(box, low, high)  # (n, 4)
    b = np.clip(boxes, low, high)
    sides = np.minimum(a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]).min(1)
    common = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    intersection = common.clip(0).prod(1)
    union = area_xyxy(a) + area_xyxy(b) - intersection + EPS
    compared = (windows != window).any(1) & (sides >= MIN_SIDE)
    return np.where(compared, intersection / union, 0.0)
