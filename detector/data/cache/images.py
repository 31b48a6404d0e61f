"""The images of a data set at the network's size, the first step of training and validation; each
is decoded once, if there is room to keep them."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import cv2
import numpy as np
import torch.distributed as dist

from boltbox.detector.data.cache.labels import cache_folder, digest, states
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.data.transforms.letterbox import LazyImage, Patch, longest_shape, resize
from boltbox.detector.system.atomic_file import remove
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print

if TYPE_CHECKING:  # `predict` does without it
    import lightning as L

VERSION = 4  # raise it with any change to how images are decoded or resized
_KEY = 64  # bytes
_CGROUPS = Path("/sys/fs/cgroup")


class ImageStore:
    """Images in one file that all processes of a machine map; whoever reads one first writes it.

    key (64 bytes), a checksum of all that decides the content · for each of the n images 1 + its
    crc32, 0 if it is not there yet (n int64) · their pixels one after the other, uint8 RGB

    Args:
        file: open for reading and writing, of `store_bytes`; one in memory is gone when all
            processes have closed it.
        shapes: (n, 2) height and width of each image.

    Attributes:
        checks: (n,) int64, 0 where an image is not there yet · nbytes: of the file.
    """

    def __init__(self, file: BinaryIO, shapes: np.ndarray) -> None:
        self.file, self._shapes = file, shapes
        content = mmap.mmap(file.fileno(), 0)
        self.nbytes = len(content)
        self.checks = np.frombuffer(content, np.int64, len(shapes), _KEY)
        self._pixels = np.frombuffer(content, np.uint8)
        self._starts = self.nbytes - shapes.prod(1)[::-1].cumsum()[::-1] * 3
        self._intact = bytearray(len(shapes))  # 1: this process has compared pixels and checksum

    def _image(self, i: int) -> np.ndarray:
        height, width = self._shapes[i].tolist()
        start = self._starts[i]
        return self._pixels[start : start + height * width * 3].reshape(height, width, 3)

    def read(self, i: int) -> np.ndarray | None:
        """Image i, (h, w, 3) uint8 RGB, read-only; None if it is not there, or damaged."""
        pixels = self._image(i)
        if not self._intact[i]:
            if not self.checks[i] or self.checks[i] != 1 + zlib.crc32(pixels.data):
                return None
            self._intact[i] = 1
        pixels.flags.writeable = False
        return pixels

    def write(self, i: int, pixels: np.ndarray) -> None:
        """Processes that write the same image at once write the same."""
        self._image(i)[:] = pixels
        self.checks[i] = 1 + zlib.crc32(np.ascontiguousarray(pixels).data)


class ResizedImages:
    """The images of a data set, scaled so that the longer side has `size` pixels; item i is a
    Sample whose image is still to be rendered.

    Args:
        smooth: see `resize`.
        shrink: JPEG files may be decoded at 1/2, 1/4 or 1/8 of their size, if that is not too
            small.

    Attributes:
        labels: scaled too, those of all images at once · store: what need not be decoded again.
    """

    def __init__(
        self, dataset: DetectionDataset, size: int, smooth: bool = False, shrink: bool = False
    ) -> None:
        self.dataset, self.size, self.smooth, self.shrink = dataset, size, smooth, shrink
        self.way = [size, smooth, shrink]
        self.labels = dataset.labels.scaled(
            [longest_shape(h, w, size) for h, w in dataset.labels.sizes.tolist()]
        )
        self.store: ImageStore | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Sample:
        height, width = self.labels.sizes[i].tolist()
        image = LazyImage((height, width), [Patch(partial(self.read, i), (0, 0, width, height))])
        h, w = self.dataset.labels.sizes[i].tolist()
        letterbox = LetterboxInfo(h, w, width / w, height / h)
        return Sample(image, *self.labels.counted(i), letterbox=letterbox, index=i)

    def read(self, i: int) -> np.ndarray:
        """(h, w, 3) uint8 RGB of image i; not to be written to."""
        pixels = self.store.read(i) if self.store else None
        if pixels is None:
            pixels = self.dataset.read(i, self.size if self.shrink else 0)
            pixels = resize(pixels, self.labels.sizes[i].tolist(), self.smooth)
            if self.store:
                self.store.write(i, pixels)
        return pixels

    def key(self) -> bytes:
        """A checksum of all that decides the pixels."""
        files = [self.dataset.files, states(self.dataset.files)]
        return digest([VERSION, cv2.__version__, self.way, files]).encode()

    def store_bytes(self) -> int:
        """Size of their store."""
        return _KEY + 8 * len(self) + 3 * int(self.labels.sizes.prod(1).sum())


def cache_images(
    where: Literal["auto", "ram", "disk"],
    splits: Mapping[str, ResizedImages],
    source: str,
    trainer: L.Trainer | None,
) -> None:
    """Give the images of each split a store, if there is room for all of them; all processes call
    it alike.

    ram: files in memory without a name, which end with the last process that maps them. disk: files
    in the cache folder, for later trainings too, as long as no image changes. auto: ram, if the
    images take no more than a quarter of the memory that is free; else they may take half of what
    is free.

    Args:
        source: the data set's name.
    """
    files: list[BinaryIO] = []
    if not trainer or trainer.local_rank == 0:
        try:
            files = _open_files(where, splits, source)
        except OSError as e:
            rank_zero_print(f"images are not cached ({e}); BOLTBOX_CACHE may name another folder")
    if trainer and dist.is_initialized():
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in files]
        of_nodes = [(trainer.node_rank, paths)] * trainer.world_size
        dist.all_gather_object(of_nodes, of_nodes[0])
        paths = [path for node, own in of_nodes if node == trainer.node_rank for path in own]
        files = files or [open(path, "r+b") for path in paths]  # noqa: SIM115 (kept)
    for images, file in zip(splits.values(), files, strict=False):
        images.store = ImageStore(file, images.labels.sizes)


def _open_files(where: str, splits: Mapping[str, ResizedImages], source: str) -> list[BinaryIO]:
    """A file for each split, the earlier one if nothing has changed; none if there is no room."""
    paths: dict[str, Path] = {}
    files: dict[str, BinaryIO] = {}
    if where == "disk":
        folder = cache_folder() / "images"
        folder.mkdir(parents=True, exist_ok=True)
        for name, images in splits.items():
            of = digest([str(Path(source).absolute()), images.way])[:24]
            paths[name] = path = folder / f"{name}-{images.size}-{of}"
            with suppress(FileNotFoundError):
                file = open(path, "r+b")  # noqa: SIM115 (kept)
                size = os.path.getsize(path)
                if size == images.store_bytes() and file.read(_KEY) == images.key():
                    files[name] = file
    free = shutil.disk_usage(folder).free if where == "disk" else free_memory()
    needed = sum(images.store_bytes() for name, images in splits.items() if name not in files)
    share = 4 if where == "auto" else 2
    if needed > free // share:
        rank_zero_print(
            f"images are not cached: they would take {needed / 1e9:.3g} GB, more than 1/{share} of"
            f" what is free ({free / 1e9:.3g} GB)"
        )
        return []
    for name, images in splits.items():
        place, megabytes = paths.get(name, "memory"), images.store_bytes() / 1e6
        print_fact("cache", f"{name} images in {place} ({megabytes:.1f} MB)")
    return [files.get(name) or _new_file(name, splits[name], paths.get(name)) for name in splits]


def _new_file(name: str, images: ResizedImages, path: Path | None) -> BinaryIO:
    """Without any image yet; in memory if there is no path."""
    if path:
        remove(path)  # and not written to: another process may have mapped it
    # not "w": what another process has made and mapped since must not be cut off
    file = open(path or os.memfd_create(f"boltbox-{name}"), "x+b" if path else "w+b")  # noqa: SIM115
    try:
        os.posix_fallocate(file.fileno(), 0, images.store_bytes())  # a full disk shows here
        os.pwrite(file.fileno(), images.key(), 0)
    except OSError:
        if path:
            remove(path)
        raise
    return file


def free_memory() -> int:
    """Bytes that are free on this machine or, if less, in the container's control groups (v2)."""
    (available,) = re.findall(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    free = [int(available) * 1024]
    group = re.findall("^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    own = _CGROUPS.joinpath(*group)
    for folder in (own, *own.parents):
        with suppress(OSError, ValueError):  # no group, or "max", which is no number
            statistics = (folder / "memory.stat").read_text()
            # the kernel gives up the files that it has in memory
            files = re.findall(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
            limit, used = (
                int((folder / f"memory.{name}").read_text()) for name in ("max", "current")
            )
            free.append(max(limit - used + sum(map(int, files)), 0))
    return min(free)
