"""The sizes of the network by name, and what its multiples do."""

import math
from typing import NamedTuple

from boltbox.detector.system.errors import InputError, nearest


class Size(NamedTuple):
    depth: float
    width: float
    levels: tuple[int, ...] = (3, 4, 5)


P6, P7 = (3, 4, 5, 6), (3, 4, 5, 6, 7)
SIZES = {
    "n": Size(0.33, 0.25),
    "s": Size(0.33, 0.50),
    "m": Size(0.67, 0.75),
    "l": Size(1.00, 1.00),
    "x": Size(1.33, 1.25),
    "n6": Size(0.33, 0.25, P6),
    "s6": Size(0.33, 0.50, P6),
    "m6": Size(0.67, 0.75, P6),
    "l6": Size(1.00, 1.00, P6),
    "x6": Size(1.33, 1.25, P6),
    "p2": Size(1.00, 1.00, (2, 3, 4, 5)),
    "p34": Size(0.33, 0.50, (3, 4)),
    "p6": Size(1.00, 1.00, P6),
    "p7": Size(1.00, 1.00, P7),
}
CHANNELS = {
    5: (64, 128, 256, 512, 1024),
    6: (64, 128, 256, 512, 768, 1024),
    7: (64, 128, 256, 512, 768, 1024, 1280),
}
STAGE_REPEATS = {2: 3, 3: 6, 4: 9, 5: 3, 6: 3, 7: 3}
YOLOX_REPEATS = {**STAGE_REPEATS, 3: 9}


def resolve_size(size: str) -> Size:
    """The row of SIZES; an unknown name is an InputError that gives the nearest."""
    if size not in SIZES:
        raise InputError(f"model.network.size '{size}' is not known; {nearest(size, SIZES)}")
    return SIZES[size]


def scaled_channels(channels: int, width: float) -> int:
    """A layer's channels at a width multiple: a multiple of 8.

    >>> scaled_channels(64, 0.33)
    24
    """
    return math.ceil(channels * width / 8) * 8


def scaled_repeats(repeats: int, depth: float) -> int:
    """A block's repeats at a depth multiple, at least one; a single one stays.

    >>> scaled_repeats(9, 0.33), scaled_repeats(1, 1.33)
    (3, 1)
    """
    return max(round(repeats * depth), 1) if repeats > 1 else repeats
