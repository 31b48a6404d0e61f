"""Anchors: the default sets."""

from collections.abc import Sequence

# Pixels w, h, w, h, w, h by level, found by k-means on COCO at 640 px (levels 3-5) and 1280 px (levels 3-6). Levels 2 and 7 are
# ours: half of the next, twice the one before, because YOLOv5 ships placeholders there that cannot train.
_P5 = {
    2: (5, 6, 8, 15, 16, 11),
    3: (10, 13, 16, 30, 33, 23),
    4: (30, 61, 62, 45, 59, 119),
    5: (116, 90, 156, 198, 373, 326),
}
_P6 = {
    3: (19, 27, 44, 40, 38, 94),
    4: (96, 68, 86, 152, 180, 137),
    5: (140, 301, 303, 264, 238, 542),
    6: (436, 615, 739, 380, 925, 792),
    7: (872, 1230, 1478, 760, 1850, 1584),
}


def default_anchors(levels: Sequence[int]) -> list[tuple[int, ...]]:
    """Anchors in pixels for these levels, a row a level: w, h, w, h, w, h."""
    table = _P6 if max(levels) > 5 else _P5
    return [table[k] if k in table else _P5[k] for k in levels]
