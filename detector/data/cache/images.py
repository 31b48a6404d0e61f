"""The images of a dataset at the network's size, the first step of training and validation; each
is decoded once, if there is room to keep them."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import cv2
import numpy as np

from boltbox.detector.data.cache.labels import cache_folder, digest
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.file_list import checksum, list_folder
from boltbox.detector.data.images import read_image
from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.data.transforms.letterbox import LazyImage, Patch, longest_shape, resize
from boltbox.detector.system.atomic_file import remove
from boltbox.detector.system.gather import gather
from boltbox.detector.system.operating_system import free_memory, has_memory_files, reserve
from boltbox.detector.system.rank_zero import print_fact

if TYPE_CHECKING:  # `predict` does without it
    import lightning as L

VERSION = 8  # raise it with any change to how images are decoded or resized


class ImageStore:
    """Images in one file that all processes of a machine map; the first to read one writes it.

    The file: per image 1 + its crc32, 0 until it is written (int64); then the pixels of one image
    after the other, uint8 RGB.

    Args:
        path: of the file, of `store_bytes`.
        shapes: (n, 2) height and width of each image.
        file: open at `path`; one in memory is gone when all processes have closed it.

    Attributes:
        checks: (n,) int64, 0 where an image is not written yet.
    """

    def __init__(self, path: str, shapes: np.ndarray, file: BinaryIO | None = None) -> None:
        self.path = path
        self._shapes = shapes
        self._file = file
        content = np.memmap(path, np.uint8, "r+", shape=(store_bytes(shapes),))
        self.checks = content[: 8 * len(shapes)].view(np.int64)
        self._pixels = content[8 * len(shapes) :]
        sizes = 3 * shapes.prod(1)
        self._starts = np.cumsum(sizes) - sizes
        self._intact = bytearray(len(shapes))  # 1: this process has compared the checksum

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageStore, (self.path, self._shapes)

    def _image(self, i: int) -> np.ndarray:
        height, width = self._shapes[i].tolist()
        start = self._starts[i]
        return self._pixels[start : start + height * width * 3].reshape(height, width, 3)

    def read(self, i: int) -> np.ndarray | None:
        """Image i, (h, w, 3) uint8 RGB, read-only; None if it is not written yet, or damaged."""
        pixels = self._image(i)
        if not self._intact[i]:
            if self.checks[i] != 1 + zlib.crc32(pixels.data):
                return None
            self._intact[i] = 1
        pixels.flags.writeable = False
        return pixels

    def write(self, i: int, pixels: np.ndarray) -> None:
        """Processes that write the same image at once write the same."""
        self._image(i)[:] = pixels
        self.checks[i] = 1 + zlib.crc32(np.ascontiguousarray(pixels).data)


class ResizedImages:
    """The images of a dataset, scaled so that the longer side has `size` pixels; item i is a
    Sample whose image is still to be rendered.

    Args:
        dataset: images and labels as they are on disk.
        size: longer side in pixels.
        smooth: see `resize`.
        shrink: decode JPEG files at 1/2, 1/4 or 1/8 of their size, if that is not too small.

    Attributes:
        shrinks: (n,) 1, 2, 4 or 8: the files are decoded at this fraction of their size.
        shapes: (n, 2) height and width in pixels of each item; its labels are scaled with it.
        sizes: (n, 2) of the pixels that `read` gives: the same.
        image_of: (m,) the image of each training sample: of every image one.
        sample_sizes: (m, 2) height and width in pixels of the file that each of them shows.
        store: images that need not be decoded again.
    """

    def __init__(
        self, dataset: DetectionDataset, size: int, smooth: bool = False, shrink: bool = False
    ) -> None:
        self.dataset = dataset
        self.size = size
        self.smooth = smooth
        self.shrink = shrink
        self.shrinks = np.ones(len(dataset), np.int64)
        if shrink:
            longer = dataset.labels.sizes.max(1)
            for factor in (2, 4, 8):
                self.shrinks[longer >= factor * size] = factor
        self.shapes = longest_shape(dataset.labels.sizes, size)
        self.sizes = self.shapes
        self.image_of = np.arange(len(dataset))
        self.sample_sizes = dataset.labels.sizes
        self.store: ImageStore | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Sample:
        height, width = self.shapes[i].tolist()
        image = LazyImage((height, width), [Patch(partial(self._item, i), (0, 0, width, height))])
        h, w = self.dataset.labels.sizes[i].tolist()
        boxes, classes, polygons = self.dataset.labels.counted(i)
        sample = Sample(None, boxes, classes, polygons, LetterboxInfo(h, w), i)
        return sample.moved(image, (width / w, height / h), (0, 0))

    def sample(self, number: int, rng: np.random.Generator) -> Sample:
        """A training sample before the augmentation: here an item."""
        return self[number]

    def _item(self, i: int) -> np.ndarray:
        height, width = self.shapes[i].tolist()
        return resize(self.read(i), (height, width), smooth=True)

    def read(self, i: int) -> np.ndarray:
        """(h, w, 3) uint8 RGB of image i; not to be written to."""
        pixels = self.store.read(i) if self.store else None
        if pixels is None:
            pixels = read_image(self.dataset.files[i], int(self.shrinks[i]))
            height, width = self.sizes[i].tolist()
            pixels = resize(pixels, (height, width), self.smooth)
            if self.store:
                self.store.write(i, pixels)
        return pixels

    def key(self) -> str:
        """A checksum of all that decides the pixels."""
        files = list(self.dataset.files)
        folders = sorted(set(map(os.path.dirname, files)))
        looks = [checksum(list_folder(folder, with_states=True), False) for folder in folders]
        how = [self.size, self.smooth, self.shrink, store_bytes(self.sizes)]
        return digest([VERSION, cv2.__version__, how, files, looks])


def store_bytes(shapes: np.ndarray) -> int:
    """Size of a store of images of (n, 2) height and width."""
    return 8 * len(shapes) + 3 * int(shapes.prod(1).sum())


def cache_images(
    where: Literal["auto", "ram", "disk"],
    splits: Mapping[str, ResizedImages],
    source: str,
    trainer: L.Trainer | None,
) -> None:
    """Give the images of each split a store, if there is room for all of them.

    All processes call it alike; the first one of each machine makes the stores.

    Args:
        where: ram: files in memory without a name, which end with the last process that maps them.
            disk: files in the cache folder, for later trainings too, as long as no image changes.
            auto: ram, if the images need at most a quarter of the free memory. Else the limit is
            half of what is free.
        splits: images by name of the split.
        source: name of the dataset.
        trainer: says which process this is; None: the only one.
    """
    stores: list[ImageStore] = []
    if not trainer or trainer.local_rank == 0:
        try:
            stores = _make_stores(where, splits, source)
        except OSError as e:
            print_fact("cache", f"no images ({e}); BOLTBOX_CACHE names another folder")
    if trainer:
        for node, paths in gather((trainer.node_rank, [store.path for store in stores])):
            if node == trainer.node_rank and paths and not stores:
                for path, images in zip(paths, splits.values(), strict=True):
                    stores.append(ImageStore(path, images.sizes))
    for images, store in zip(splits.values(), stores, strict=False):  # none without room
        images.store = store


def _make_stores(where: str, splits: Mapping[str, ResizedImages], source: str) -> list[ImageStore]:
    """A store per split, the earlier one if no image has changed; none if there is no room."""
    if where != "disk" and not has_memory_files():
        print_fact("cache", "no images (no files in memory here; use --data.cache disk)")
        return []
    free = free_memory()
    paths: dict[str, Path] = {}
    if where == "disk":
        folder = cache_folder() / "images"
        folder.mkdir(parents=True, exist_ok=True)
        for name, images in splits.items():
            prefix = f"{name}-{images.size}-{digest(os.path.abspath(source))[:12]}"
            paths[name] = folder / f"{prefix}-{images.key()[:24]}"
            for earlier in folder.glob(f"{prefix}-*"):
                if earlier != paths[name]:
                    remove(earlier)
        free = shutil.disk_usage(folder).free
    share = 4 if where == "auto" else 2
    sizes = {name: store_bytes(images.sizes) for name, images in splits.items()}
    needed = sum(sizes[name] for name in splits if name not in paths or not paths[name].exists())
    if needed > free // share:
        reason = f"{needed / 1e9:.3g} GB needed, more than 1/{share} of {free / 1e9:.3g} GB free"
        print_fact("cache", f"no images ({reason})")
        return []
    stores = []
    for name, images in splits.items():
        stores.append(_make_store(paths.get(name), images.sizes))
        print_fact(
            "cache", f"{name} images in {paths.get(name, 'memory')} ({sizes[name] / 1e6:.1f} MB)"
        )
    return stores


def _make_store(path: Path | None, shapes: np.ndarray) -> ImageStore:
    """Zeros if the file is new; without a path it is in memory."""
    file = open(path or os.memfd_create("boltbox-images"), "a+b")  # noqa: SIM115 (kept)
    try:
        reserve(file.fileno(), store_bytes(shapes))  # a full disk shows here
    except OSError:
        if path:
            remove(path)
        raise
    return ImageStore(str(path or f"/proc/{os.getpid()}/fd/{file.fileno()}"), shapes, file)
