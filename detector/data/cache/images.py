"""Which images are stored, where, and within which budget."""

import fcntl
import json
import os
import shutil
from collections.abc import Generator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from tqdm import tqdm

from boltbox.detector.data.cache.budget import free_memory
from boltbox.detector.data.cache.folder import cache_folder, own_name, say_without
from boltbox.detector.data.cache.node import Node
from boltbox.detector.data.cache.origins import changes
from boltbox.detector.data.cache.packed import Damaged
from boltbox.detector.data.cache.store import ImageStore, Layout, fill
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.transforms.lazy_image import LazyImages
from boltbox.detector.data.transforms.letterbox import Resize
from boltbox.detector.system.atomic_file import write_beside
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

VERSION = 1  # raise it with any change to how images are decoded or resized


class ImageCache:
    """Stores for the images of one training, each shared by all processes of this machine.

    ram: a file in memory without a name, gone with the last process that has it open, however that
    ends. disk: a file in the cache folder, for later trainings too, as long as no image changes.

    Args:
        budget: bytes for all stores together, of which never more than four fifths of what is free
            are used; None: half of what is free, and a store on disk that was made with any other
            budget is taken as it is.
        machine: its processes; all of them must call `add` alike.
    """

    def __init__(self, where: Literal["ram", "disk"], budget: int | None, machine: Node) -> None:
        self.where, self.budget, self.machine = where, budget, machine
        self.taken = 0  # bytes, by the stores so far

    def add(
        self, split: str, dataset: DetectionDataset, resize: Resize, places: Sequence[str]
    ) -> None:
        """Give the data set a store of its first images, as many as there is room for. places:
        paths that tell it from all others."""
        store = None
        try:
            if self.where == "ram":
                where = "memory"
                store = self.machine.work(self._fill_memory(split, dataset, resize))
                path = self.machine.hear(store and store.path())
                store = store or (ImageStore(os.open(path, os.O_RDONLY)) if path else None)
            else:
                key = json.dumps(
                    [str(Path.cwd()), *places, resize.size, resize.smooth, resize.reduced]
                )
                file = (
                    cache_folder()
                    / "images"
                    / f"{split}-{resize.size}-{sha256(key.encode()).hexdigest()[:24]}"
                )
                where = str(file)
                self.machine.work(self._fill_disk(file, split, dataset, resize))
                store, _ = self._intact(file, dataset)
        except OSError as e:
            say_without("images", e)
        if store:
            dataset.store = store
            self.taken += store.nbytes
            more = "" if len(store.states) == len(dataset) else "; there is no room for more"
            rank_zero_print(
                f"{split}: {store.stored} of {len(dataset)} images cached in {where}"
                f" ({store.nbytes / 1e6:.1f} MB{more})"
            )

    def _fill_memory(
        self, split: str, dataset: DetectionDataset, resize: Resize
    ) -> Generator[int, None, ImageStore | None]:
        layout = self._layout(dataset, resize, free_memory())
        if not len(layout.shapes):
            rank_zero_print(f"{split}: no images cached; there is no room")
            return None
        descriptor = os.memfd_create(f"boltbox-{split}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            yield from self._fill(split, descriptor, dataset, layout, resize)
            fcntl.fcntl(
                descriptor,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE,
            )
        except OSError as e:
            os.close(descriptor)
            say_without("images", e)
            return None
        return ImageStore(descriptor)

    def _fill_disk(
        self, path: Path, split: str, dataset: DetectionDataset, resize: Resize
    ) -> Generator[int, None, None]:
        try:
            store, why = self._intact(path, dataset)
            if store:
                return
            if why:
                rank_zero_print(f"image cache of {split} rebuilt because {why}")
                path.unlink()  # first, so that the two together do not exceed the budget
            path.parent.mkdir(parents=True, exist_ok=True)
            layout = self._layout(dataset, resize, shutil.disk_usage(path.parent).free)
            if not len(layout.shapes):
                rank_zero_print(f"{split}: no images cached; there is no room")
                return
            beside = write_beside(own_name(path), lambda file: None)
            try:
                with open(beside, "r+b") as file:
                    yield from self._fill(split, file.fileno(), dataset, layout, resize)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as e:
            say_without("images", e)

    def _layout(self, dataset: DetectionDataset, resize: Resize, free: int) -> Layout:
        free += self.taken
        budget = free // 2 if self.budget is None else min(self.budget, free * 4 // 5)
        return Layout.within(budget - self.taken, dataset.shapes(), resize.size)

    def _fill(
        self, split: str, descriptor: int, dataset: DetectionDataset, layout: Layout, resize: Resize
    ) -> Generator[int, None, None]:
        about = {"version": _version(), "images": _digest(dataset), "budget": self.budget}
        with tqdm(
            total=len(layout.shapes), desc=f"{split}: caching images", disable=None, leave=False
        ) as bar:
            lazy = LazyImages(dataset, resize) if resize.reduced else None
            for done in fill(
                descriptor, dataset.files, layout, partial(_pixels, dataset, resize, lazy), about
            ):
                bar.update(done - bar.n)
                yield done

    def _intact(self, path: Path, dataset: DetectionDataset) -> tuple[ImageStore | None, str]:
        """The store of an earlier training; or None and, if there is a file, why it doesn't
        serve."""
        try:
            store = ImageStore(os.open(path, os.O_RDONLY))
        except FileNotFoundError:
            return None, ""
        except Damaged as e:
            return None, str(e)
        k = len(store.states)
        if store.about.get("version") != _version():
            return None, "it was written by another version of boltbox or OpenCV"
        if store.about.get("images") != _digest(dataset):
            return None, "the list of images changed"
        if why := changes(dataset.files[:k], store.states):
            return None, why
        enough = k == len(dataset) or store.about.get("budget") == self.budget
        if self.budget is not None and (store.nbytes > self.budget - self.taken or not enough):
            return None, "data.cache_budget changed"
        return store, ""


def _pixels(
    dataset: DetectionDataset, resize: Resize, lazy: LazyImages | None, i: int
) -> np.ndarray | None:
    """Image i after the first step; None if the loader, too, will not get that far, or not to the
    size in the file's header."""
    try:
        if lazy:
            return lazy.read(i)
        sample = dataset[i]
        return (
            resize(sample).image
            if sample.size == (dataset.labels[i].height, dataset.labels[i].width)
            else None
        )
    except InputError:  # who asks for this image later will be told
        return None


def _version() -> list[object]:
    """What the pixels of the same file may differ by."""
    return [VERSION, cv2.__version__]


def _digest(dataset: DetectionDataset) -> str:
    """Of the images' names, in their order."""
    return sha256(b"\n".join(dataset.files.encoded())).hexdigest()
