"""Images as the first step of the augmentation makes them: one file a split, which all processes
of a machine map.

    key (32 bytes) · crc32 of each of the n images, -1 if it is not stored (n int64) · their pixels
    one after the other, uint8 RGB

The key is a checksum of all that decides the content, and is written last.
"""

import errno
import json
import mmap
import os
import shutil
import zlib
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

import cv2
import lightning as L
import numpy as np
import torch.distributed as dist
from tqdm import tqdm

from boltbox.detector.data.cache.folder import cache_folder, own_name, say_without
from boltbox.detector.data.cache.memory import free_memory
from boltbox.detector.data.cache.origins import states
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.loading.train_samples import LazyImages
from boltbox.detector.data.transforms.letterbox import Resize, longest_shape
from boltbox.detector.system.atomic_file import remove, write_beside
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

T = TypeVar("T")
VERSION = 2  # raise it with any change to how images are decoded or resized
_KEY = 32  # bytes
_STEP = 256  # images between two meetings of the processes


class ImageStore:
    """The stored images of a split.

    Args:
        path: of the file, which has the right size. shapes: (n, 2) height and width of each image.

    Attributes:
        key: of the content · stored: number of images in it · nbytes: of the file.
    """

    def __init__(self, path: str | Path, shapes: np.ndarray) -> None:
        with open(path, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        n, self.nbytes = len(shapes), len(content)
        self.key, self._shapes = content[:_KEY], shapes
        self._crcs = np.frombuffer(content, np.int64, n, _KEY)
        self._pixels = np.frombuffer(content, np.uint8)
        self._starts = pixel_starts(shapes)
        self._intact = bytearray(n)  # 1: this process has compared the pixels with their checksum
        self.stored = int((self._crcs >= 0).sum())

    def read(self, i: int) -> np.ndarray | None:
        """Image i, (h, w, 3) uint8 RGB, read-only; None if it is not stored, or damaged."""
        pixels = self._pixels[self._starts[i] : self._starts[i + 1]]
        if not self._intact[i]:
            if zlib.crc32(pixels.data) != self._crcs[i]:
                return None
            self._intact[i] = 1
        return pixels.reshape(*self._shapes[i].tolist(), 3)


def pixel_starts(shapes: np.ndarray) -> np.ndarray:
    """(n + 1,) int64: the first byte of each image in the file, and the file's size."""
    return _KEY + 8 * len(shapes) + np.concatenate(([0], np.cumsum(shapes.prod(1) * 3)))


class StoredSplit:
    """The store of a split, about to be found or written.

    Args:
        name: train or val. dataset: its images. resize: the first step of their augmentation.
        places: paths that distinguish the split from all others.
    """

    def __init__(
        self, name: str, dataset: DetectionDataset, resize: Resize, places: Sequence[str]
    ) -> None:
        self.name, self.dataset, self.resize = name, dataset, resize
        shapes = [longest_shape(h, w, resize.size) for h, w in dataset.shapes().tolist()]
        self.shapes = np.array(shapes, np.int64).reshape(-1, 2)
        self.nbytes = int(pixel_starts(self.shapes)[-1])
        self.lazy = LazyImages(dataset, resize) if resize.lazy else None
        self.states = states(dataset.files)
        way, decoder = [resize.size, resize.smooth, resize.lazy], [VERSION, cv2.__version__]
        self.key = _digest([decoder, way, list(dataset.files), self.states.tolist(), shapes])
        where = _digest([str(Path.cwd()), *places, way]).hex()[:24]
        self.file = f"{name}-{resize.size}-{where}"

    def find(self, path: str | Path) -> ImageStore | None:
        """The store in a file, if it is one of these images."""
        with suppress(FileNotFoundError):
            if os.path.getsize(path) == self.nbytes:
                store = ImageStore(path, self.shapes)
                return store if store.key == self.key else None
        return None

    def fill(self, descriptor: int) -> Iterator[None]:
        """Write an empty file, with a thread for each core.

        Raises:
            OSError: the disk or the memory is full.
        """
        starts, crcs, n = pixel_starts(self.shapes).tolist(), list[int](), len(self.shapes)

        def write(i: int) -> int:
            pixels = self._pixels(i)
            if pixels is None:
                return -1
            _write(descriptor, pixels, starts[i])
            return zlib.crc32(pixels.data)

        with (
            ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
            tqdm(total=n, desc=f"{self.name}: caching images", disable=None, leave=False) as bar,
        ):
            os.ftruncate(descriptor, self.nbytes)
            for first in range(0, n, _STEP):
                crcs += pool.map(write, range(n)[first : first + _STEP])
                bar.update(len(crcs) - bar.n)
                yield
        _write(descriptor, np.array(crcs, np.int64), _KEY)
        _write(descriptor, np.frombuffer(self.key, np.uint8), 0)
        os.fsync(descriptor)

    def _pixels(self, i: int) -> np.ndarray | None:
        """Image i after the first step; None if it cannot be decoded, or not to the size in its
        header, or has changed meanwhile."""
        try:
            image = self.lazy.read(i) if self.lazy else self.resize(self.dataset[i]).image
        except InputError:  # the loader will say so
            return None
        same = (states([self.dataset.files[i]])[0] == self.states[i]).all()
        fits = image.shape[:2] == tuple(self.shapes[i].tolist())
        return np.ascontiguousarray(image) if same and fits else None


def cache_images(
    where: Literal["auto", "ram", "disk"], splits: Sequence[StoredSplit], trainer: L.Trainer | None
) -> None:
    """Give each data set its store, if there is room for all of them; all processes call it alike.

    ram: files in memory without a name, which end with the last process that maps them. disk: files
    in the cache folder, for later trainings too, as long as no image changes. auto: ram, if the
    images take no more than a quarter of the memory that is free; else they may take half of what
    is free.
    """
    node, local_rank = (trainer.node_rank, trainer.local_rank) if trainer else (0, 0)
    first = local_rank == 0
    try:
        folder = cache_folder() / "images" if where == "disk" else None
        fits = not first or _fits(where, folder, splits)
    except OSError as e:
        say_without("images", e)
        fits = False
    if not all(_gathered(fits)):
        return
    for split in splits:
        path = _by_first(first, _store(split, folder))
        path = next((p for of_node, p in _gathered((node, path)) if of_node == node and p), None)
        split.dataset.store = split.find(path) if path else None
        _gathered(None)  # all have opened it
        if path and not folder and first:
            os.close(int(Path(path).name))
        if store := split.dataset.store:
            rank_zero_print(
                f"{split.name}: {store.stored} of {len(split.dataset)} images cached in"
                f" {path if folder else 'memory'} ({split.nbytes / 1e6:.1f} MB)"
            )


def _fits(where: str, folder: Path | None, splits: Sequence[StoredSplit]) -> bool:
    """Whether there is room for the stores that are not there yet."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        free, kind = shutil.disk_usage(folder).free, "disk"
        splits = [split for split in splits if not split.find(folder / split.file)]
    else:
        free, kind = free_memory(), "memory"
    needed, most = sum(split.nbytes for split in splits), free // (4 if where == "auto" else 2)
    if needed > most:
        limit = "a quarter" if where == "auto" else "half"
        way = "; --data.cache ram takes up to half of it" if where == "auto" else ""
        rank_zero_print(
            f"images are not cached: they would take {needed / 1e9:.3g} GB, more than {limit} of"
            f" the {kind} that is free ({most / 1e9:.3g} GB){way}"
        )
    return needed <= most


def _store(split: StoredSplit, folder: Path | None) -> Generator[None, None, str | None]:
    """Find or write a store; the path to open it by, None if there is no room."""
    try:
        if not folder:
            descriptor = os.memfd_create(f"boltbox-{split.name}")
            yield from split.fill(descriptor)
            return f"/proc/{os.getpid()}/fd/{descriptor}"
        path = folder / split.file
        if not split.find(path):
            if path.exists():
                rank_zero_print(f"image cache of {split.name} rebuilt: its images have changed")
            beside = write_beside(own_name(path), lambda file: None)
            try:
                with open(beside, "r+b") as file:
                    yield from split.fill(file.fileno())
                os.replace(beside, path)
            finally:
                remove(beside)
        return str(path)
    except OSError as e:
        say_without("images", e)
        return None


def _by_first(first: bool, steps: Generator[None, None, T]) -> T | None:
    """What `steps` return in the first process of the machine, which takes them. All processes
    meet after each step, so that no time limit of a barrier ends a long wait."""
    result, done = None, not first
    while True:
        if not done:
            try:
                next(steps)
            except StopIteration as e:
                result, done = e.value, True
        if all(_gathered(done)):
            return result


def _gathered(item: T) -> list[T]:
    """What each of the processes gives."""
    if not dist.is_initialized():
        return [item]
    items = [item] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items


def _write(descriptor: int, array: np.ndarray, start: int) -> None:
    if os.pwrite(descriptor, array.data, start) < array.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _digest(content: object) -> bytes:
    return sha256(json.dumps(content).encode()).digest()
