"""Images as the first step of the augmentation makes them, in one file that all processes map; once
written it never changes.

    pixels of one image after the other, uint8 RGB · index: a block of packed.py · length of the
    index (8 bytes)

Readers share the pages of the file, so that it is in memory once, whatever the number of workers
and ranks.
"""

import errno
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np

from boltbox.detector.data.cache.origins import states
from boltbox.detector.data.cache.packed import Damaged, pack, unpack
from boltbox.detector.data.transforms.letterbox import longest_shape

_INDEX, _ROW = 4096, 64  # bytes that the index takes at most: in any case, and for each image
_COLUMNS = {"shapes", "crcs", "starts", "states"}
_STEP = 256  # images that are written before anything else happens


class Layout(NamedTuple):
    """Where the first k images of a data set go. shapes (k, 2) int32 height, width in the store ·
    starts (k + 1,) int64 first byte of each."""

    shapes: np.ndarray
    starts: np.ndarray

    @classmethod
    def within(cls, budget: int, sizes: np.ndarray, size: int) -> "Layout":
        """The most images that `budget` bytes have room for, all told. sizes (n, 2): height, width
        of the files' images; size: their longer side in the store."""
        shapes = np.array([longest_shape(h, w, size) for h, w in sizes.tolist()], np.int32).reshape(
            -1, 2
        )
        starts = np.concatenate(([0], np.cumsum(shapes.prod(1, dtype=np.int64) * 3)))
        needed = starts[1:] + _INDEX + _ROW * np.arange(1, len(shapes) + 1)
        k = int(np.searchsorted(needed, budget, "right"))
        return cls(shapes[:k], starts[: k + 1])

    @property
    def most_bytes(self) -> int:
        return int(self.starts[-1]) + _INDEX + _ROW * len(self.shapes)


def fill(
    descriptor: int,
    files: Sequence[str],
    layout: Layout,
    pixels: Callable[[int], np.ndarray | None],
    about: dict[str, Any],
) -> Iterator[int]:
    """Write a store into an empty file, with a thread for each core. Now and then yields how many
    images are done.

    Args:
        files: that the images come from; one that changes meanwhile is left out.
        pixels: gives image i as it shall be stored; what has another shape than in `layout`, or is
            None, is left out.
        about: for the index.

    Raises:
        OSError: the file cannot take it.
    """
    shapes, starts = layout.shapes.tolist(), layout.starts.tolist()
    before = states(files[: len(shapes)])

    def write(i: int) -> tuple[int, int, int]:
        """Height, width, crc32; all 0 if the image is left out."""
        image = pixels(i)
        if (
            image is None
            or list(image.shape[:2]) != shapes[i]
            or (states([files[i]]) != before[i]).any()
        ):
            return 0, 0, 0
        image = np.ascontiguousarray(image)
        if os.pwrite(descriptor, image.data, starts[i]) < image.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return image.shape[0], image.shape[1], zlib.crc32(image.data)

    entries: list[tuple[int, int, int]] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for first in range(0, len(shapes), _STEP):
            entries += pool.map(write, range(len(shapes))[first : first + _STEP])
            yield len(entries)
    columns = np.array(entries, np.int64).reshape(-1, 3)
    arrays = {
        "shapes": columns[:, :2].astype(np.int32),
        "crcs": columns[:, 2].astype(np.uint32),
        "starts": layout.starts,
        "states": before,
    }
    index = pack(about, arrays)
    end = -(-starts[-1] // 8) * 8
    os.pwrite(descriptor, index + len(index).to_bytes(8, "little"), end)
    os.fsync(descriptor)
    assert os.fstat(descriptor).st_size <= layout.most_bytes


class ImageStore:
    """A file that `fill` has written, for reading.

    Args:
        descriptor: of the open file; it is closed with the store.

    Attributes:
        about: what `fill` was given · stored: number of images in it · nbytes: of the file · states
            (k, 2): of the files of the
        first k images when they were read, see `origins.states`.

    Raises:
        Damaged: the file is cut, damaged or something else.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "rb")
        self.nbytes = os.fstat(descriptor).st_size
        if self.nbytes < 8:
            raise Damaged("it is cut or damaged")
        view = memoryview(mmap.mmap(descriptor, self.nbytes, access=mmap.ACCESS_READ))
        end = self.nbytes - 8 - int.from_bytes(view[-8:], "little")
        if end < 0:
            raise Damaged("it is cut or damaged")
        self.about, arrays = unpack(view[end:-8])
        if arrays.keys() != _COLUMNS or not isinstance(self.about, dict):
            raise Damaged("it is not a store of images")
        self._pixels = np.frombuffer(view[:end], np.uint8)
        self._shapes, self._crcs = arrays["shapes"], arrays["crcs"]
        self._starts, self.states = arrays["starts"], arrays["states"]
        # 1: this process has compared the pixels with their checksum
        self._sound = bytearray(len(self._shapes))
        self.stored = int((self._shapes[:, 0] > 0).sum())

    def read(self, i: int) -> np.ndarray | None:
        """Image i, (h, w, 3) uint8 RGB, a view that cannot be written to; None if it isn't here,
        intact."""
        if not 0 <= i < len(self._shapes):
            return None
        height, width = self._shapes[i].tolist()
        start = int(self._starts[i])
        pixels = self._pixels[start : start + height * width * 3]
        if not self._sound[i]:
            if not height or zlib.crc32(pixels.data) != self._crcs[i]:
                return None
            self._sound[i] = 1
        return pixels.reshape(height, width, 3)

    def path(self) -> str:
        """Where other processes of this machine can open the file, even if it has no name."""
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def __getstate__(self) -> dict[str, Any]:
        """For loaders that start their workers afresh instead of forking: the open file goes over,
        not what is in it."""
        return {"descriptor": DupFd(self._file.fileno())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["descriptor"].detach())  # type: ignore[misc]
