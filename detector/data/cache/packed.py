"""Named arrays with a description in one block of bytes: plain numbers and JSON, nothing that could
be executed.

    magic (8 bytes) · crc32 of all that follows (8) · length of the head (8) · head · arrays, each
    padded to 8 bytes

The head is JSON: {"about": anything, "arrays": [[name, dtype, shape], ...]}. Numbers are
little-endian.
"""

import json
import math
import zlib
from collections.abc import Mapping
from mmap import mmap
from typing import Any

import numpy as np

MAGIC = b"boltbox\n"
_DTYPES = {"|b1", "|u1", "<i4", "<u4", "<i8", "<f4"}


class Damaged(Exception):
    """A block that cannot be used; says why, to go on after "because"."""


def pack(about: Any, arrays: Mapping[str, np.ndarray]) -> bytes:
    """The block. about: whatever JSON can hold; arrays: C-contiguous, of bool, uint8, int32,
    uint32, int64 or float32."""
    rows = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    assert all(dtype in _DTYPES for _, dtype, _ in rows)
    head = _padded(json.dumps({"about": about, "arrays": rows}).encode(), b" ")
    rest = b"".join(
        [_number(len(head)), head, *(_padded(array.tobytes(), b"\0") for array in arrays.values())]
    )
    return MAGIC + _number(zlib.crc32(rest)) + rest


def unpack(block: bytes | mmap | memoryview) -> tuple[Any, dict[str, np.ndarray]]:
    """`about` and the arrays of `pack`, which are views into `block` and cannot be written to.

    Raises:
        Damaged: the block is cut, damaged or something else.
    """
    view = memoryview(block).toreadonly()
    if view[:8] != MAGIC:
        raise Damaged("it is not one of boltbox's files")
    if len(view) < 24 or zlib.crc32(view[16:]) != int.from_bytes(view[8:16], "little"):
        raise Damaged("it is cut or damaged")
    start = 24 + int.from_bytes(view[16:24], "little")
    arrays = {}
    try:
        head = json.loads(bytes(view[24:start]))
        for name, dtype, shape in head["arrays"]:
            if dtype not in _DTYPES or min(shape, default=0) < 0:
                raise ValueError(f"{name}: {dtype} {shape}")
            array = np.frombuffer(view, dtype, math.prod(shape), start).reshape(shape)
            arrays[name] = array
            start += -(-array.nbytes // 8) * 8
        return head["about"], arrays
    except (
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
    ) as e:  # whole, but not as `pack` writes it
        raise Damaged(f"its head makes no sense ({e})") from None


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _padded(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % 8)
