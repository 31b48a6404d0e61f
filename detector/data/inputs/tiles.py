"""Large images in overlapping tiles: where the tiles lie, and one list of detections out of those
of all tiles.

Frames: a window is the rectangle x1, y1, x2, y2 of the image's pixels that one look of the network
shows; the whole image is a window too. All boxes are xyxy pixels of the image.

Merging asks one question: do two detections of one class agree *where both windows looked*? Both
boxes are clipped to what the two windows have in common, and the overlap is measured there. For
boxes that lie in there whole this is the usual IoU. For an object that a tile's border cuts, the
fragment equals the clipped whole, so it is recognised however small a part it is, which plain IoU
cannot do; and a small object within a large one of its class, which intersection over the smaller
area would drop, stays. Of detections that agree a whole one stays before a fragment, then the more
confident one, with the best score among them. Fragments without a whole (an object larger than the
overlap) that agree with one another are joined to the box around them.
"""

import numpy as np

from boltbox.detector.model.boxes import EPS, area_xyxy

# a box that ends so near to its window's border, as a share of the window's side, is taken to be
# cut there
EDGE = 0.01
LEAST = 1.0  # pixels: less in common than this, in width or height, says nothing


def tile_starts(length: int, tile: int, overlap: float) -> np.ndarray:
    """(n,) int64 first pixel of each tile along a side: evenly spread, neighbours share at least
    `overlap` of a tile, the first begins at 0 and the last ends at `length`. One tile if the side
    is not longer than a tile.

    >>> tile_starts(1280, 640, 0.2).tolist()
    [0, 320, 640]
    """
    last, step = max(length - tile, 0), max(int(tile * (1 - overlap)), 1)
    return np.linspace(0, last, -(-last // step) + 1).astype(np.int64)


def tile_windows(height: int, width: int, tile: int, overlap: float) -> np.ndarray:
    """(n, 4) int64 windows x1, y1, x2, y2 of equal size that cover an image, row by row."""
    tops, lefts = (tile_starts(side, tile, overlap) for side in (height, width))
    w, h = min(tile, width), min(tile, height)
    return np.array([(x, y, x + w, y + h) for y in tops for x in lefts])


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
        rows: (n, 6) x1, y1, x2, y2 in pixels of the image, score, class: what all windows gave.
        windows: (n, 4) the window that each comes from.
        size: (height, width) of the image.
        iou: boxes that overlap by more than this, where both windows looked, are one object.
        max_det: most detections.
        agnostic: compare across classes.

    Returns:
        (m, 6), best first, in the dtype of `rows`.
    """
    if not len(rows):
        return rows
    exact, seen = rows.astype(np.float64), windows.astype(np.float64)
    cut = is_cut(exact[:, :4], seen, *size)
    order = np.lexsort((-exact[:, 4], cut))  # whole ones first, then by score
    exact, seen, cut = exact[order], seen[order], cut[order]
    groups = exact[:, 5] * (not agnostic)
    alive, kept = np.ones(len(exact), bool), []
    left, top, right, bottom = exact[:, :4].T.copy()
    for i in range(len(exact)):
        if not alive[i]:
            continue
        alive[i] = False
        members, waiting = [i], [i]
        while waiting:
            k = waiting.pop()
            x1, y1, x2, y2 = exact[k, :4]
            beside = (left >= x2) | (right <= x1) | (top >= y2) | (bottom <= y1)
            others = np.flatnonzero(alive & (groups == groups[i]) & ~beside)
            overlap = agreement(exact[k, :4], seen[k], exact[others, :4], seen[others])
            same = others[overlap > iou]
            alive[same] = False
            members += same.tolist()
            # a fragment is joined with those that agree with these, too
            waiting += same.tolist() if cut[i] else []
        boxes = exact[members if cut[i] else [i], :4]
        # a fragment may have been more confident
        score = exact[members, 4].max()
        kept.append([*boxes[:, :2].min(0), *boxes[:, 2:].max(0), score, exact[i, 5]])
    merged = np.array(kept)
    # of one score those of the lower class first
    best = np.lexsort((merged[:, 5] * (not agnostic), -merged[:, 4]))[:max_det]
    return merged[best].astype(rows.dtype)


def is_cut(boxes: np.ndarray, windows: np.ndarray, height: int, width: int) -> np.ndarray:
    """(n,) bool: whether a box (n, 4) ends at a border of its window (n, 4) that is not also one of
    the image."""
    margin = (windows[:, 2:] - windows[:, :2]) * EDGE
    low = (boxes[:, :2] <= windows[:, :2] + margin) & (windows[:, :2] > 0)
    high = (boxes[:, 2:] >= windows[:, 2:] - margin) & (windows[:, 2:] < (width, height))
    return (low | high).any(1)


def agreement(
    box: np.ndarray, window: np.ndarray, boxes: np.ndarray, windows: np.ndarray
) -> np.ndarray:
    """(n,) IoU of a box (4,) with others (n, 4), all clipped to what its window (4,) and theirs (n,
    4) have in common; 0 where one of them has next to nothing in there, or if it is the same
    window: these have been compared before."""
    low, high = np.maximum(window[:2], windows[:, :2]), np.minimum(window[2:], windows[:, 2:])
    ours, theirs = (np.clip(b, np.tile(low, 2), np.tile(high, 2)) for b in (box, boxes))
    sides = np.minimum(ours[:, 2:] - ours[:, :2], theirs[:, 2:] - theirs[:, :2]).min(1)
    first, last = np.maximum(ours[:, :2], theirs[:, :2]), np.minimum(ours[:, 2:], theirs[:, 2:])
    common = (last - first).clip(0).prod(1)
    compared = (windows != window).any(1) & (sides >= LEAST)
    union = area_xyxy(ours) + area_xyxy(theirs) - common + EPS
    return np.where(compared, common / union, 0.0)
