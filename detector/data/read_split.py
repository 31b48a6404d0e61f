"""Label files -> DetectionDataset, whatever the format.

A bad box is dropped and named, not its image; an image is dropped only if it cannot be used at all.
"""

import inspect
import math
import multiprocessing
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from os.path import dirname
from typing import Any, NamedTuple

import numpy as np

from boltbox.detector.data.cache.labels import CacheFile, digest, load_dataset, save_dataset
from boltbox.detector.data.datasets import DetectionDataset, Fault
from boltbox.detector.data.formats.format import (
    DIFFICULT,
    FARTHEST,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    Split,
    without_collector,
)
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.label_table import LabelTable, Texts, starts
from boltbox.detector.data.loader import prepare_worker
from boltbox.detector.model.boxes import area_xyxy
from boltbox.detector.system.addresses import is_address, many
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import available_cores, start_method
from boltbox.detector.system.rank_zero import inside, progress

PART = 1000  # images that are read at a time
PARALLEL = 4 * PART  # images from which on several processes read
VERSION = 18  # raise it with any change to what is read from a file


def part_of(entries: Sequence[Entry], share: float, split: Split) -> list[Entry]:
    """The entries of `train` or of `val`, where both are parts of the same images.

    Images are ranked by the SHA-256 of their path below the root; the first ones are for
    validation. So the parts do not depend on the order of the list, on the machine or on the place
    of the folder, and a new image moves at most one other.

    Args:
        entries: all images.
        share: of the images that is for validation. Each part has one image at least, if there are
            two.
        split: which part.

    Returns:
        In their order.
    """

    def rank(path: str) -> bytes:
        place = inside(path, str(split.root)).replace(os.sep, "/")
        return sha256(os.fsencode(place)).digest()

    ranked = sorted({entry.image for entry in entries}, key=rank)
    count = min(max(round(len(ranked) * share), 1), len(ranked) - 1)
    for_validation = set(ranked[:count])
    is_val = split.name == "val"
    return [entry for entry in entries if (entry.image in for_validation) == is_val]


class Part(NamedTuple):
    """Images that were read, with N objects.

    Attributes:
        images: of each that can be used its file, its label file, "" if there is none, and its
            (height, width) according to that; 0, 0 if it does not say it.
        places: of the N objects, see `LabelObject`.
        faults: what was left out.
        labels: of the images.
    """

    images: list[tuple[str, str, tuple[int, int]]]
    places: list[str]
    faults: list[Fault]
    labels: LabelTable


@dataclass
class SplitReader:
    """Reads one split.

    Args:
        format: of the split.
        names: class names in order.
        strict: an object whose class has no name is an error; else it is dropped, and its image too
            if no other object is left.
        single_class: every object is of class 0, named `item` unless there is just one name.
        is_own: the format is the user's own, which must be asked for its entries at each start.
    """

    format: Format
    names: list[str]
    strict: bool
    single_class: bool
    is_own: bool

    def __post_init__(self) -> None:
        if self.single_class and len(self.names) > 1:
            self.names = ["item"]
        self.further: dict[str, list[Entry]] = defaultdict(list)  # of images, after their first
        self.numbers: dict[str | int, int] = {}  # of classes, by name and by number
        for number, name in enumerate(self.names):
            self.numbers[name] = number
            self.numbers[number] = number

    def read(self, stamp: str = "") -> DetectionDataset:
        """The split; from the labels cache if no file has changed since it was read.

        Args:
            stamp: of the dataset that another process of this machine has just read.

        Raises:
            InputError: the split cannot be read; or if strict, an object whose class has no name.
        """
        split = self.format.split
        kind = type(self.format).__qualname__
        folders = [split.root, *split.folders]
        cache = CacheFile(split.name, [folders, split.paths, split.share, kind, self.single_class])
        dataset = load_dataset(cache, stamp=stamp) if stamp else None
        if dataset is None:
            dataset = self._load_or_read(cache)
        self._check(dataset.faults)
        return dataset

    def _load_or_read(self, cache: CacheFile) -> DetectionDataset:
        # remembers all files and folders that it is asked for: while these are the same, so is what
        # the cache holds
        files = self.format.files
        for path in self.format.split.paths:
            files.state(path)
        entries: Sequence[Entry] = []
        if self.is_own:
            files.state(inspect.getfile(type(self.format)))
            entries = self._find()
        key = [VERSION, self.names, digest([entry[:2] for entry in entries])]
        dataset = load_dataset(cache, key)
        if dataset is None:
            with without_collector():
                if not entries:
                    entries = self._find()
                dataset = self._read(entries)
            dataset.stamp = save_dataset(cache, key, files, dataset)
            mapped = load_dataset(cache, stamp=dataset.stamp)
            if mapped:  # instead of the arrays, a map of the file, which processes share
                return mapped
        return dataset

    def _find(self) -> list[Entry]:
        split = self.format.split
        entries = self.format.find()
        if split.share:
            entries = part_of(entries, split.share, split)
        for path in {path for entry in entries for path in entry[:2]}:  # its image and its labels
            self.format.files.is_file(path)  # remembers its folder
        return entries

    def _check(self, faults: Sequence[Fault]) -> None:
        """Raises InputError if strict, and the class of an object has no name."""
        for fault in faults:
            if self.strict and fault.kind == "unknown_class":
                raise InputError(
                    f"{fault} {self.names}; correct the labels or `names`, leave such objects out"
                    " with doctor --fix, or use --data.single_class true"
                )

    def _read(self, entries: Sequence[Entry]) -> DetectionDataset:
        split = self.format.split
        folders = sorted({(dirname(entry.file), dirname(entry.image)) for entry in entries})
        first: dict[str, Entry] = {}  # by image
        for entry in entries:
            if first.setdefault(entry.image, entry) is not entry:
                self.further[entry.image].append(entry)
        entries = list(first.values())
        images: list[Any] = []
        places: list[str] = []
        faults: list[Fault] = []
        tables = []
        if not (split.share and split.name == "val"):  # else they are reported twice
            faults += self.format.faults
        firsts = range(0, max(len(entries), 1), PART)
        parts = self._parts(entries, firsts)
        for part in progress(parts, f"{split.name}: reading labels", len(firsts)):
            self._check(part.faults)
            images += part.images
            places += part.places
            faults += part.faults
            tables.append(part.labels)
        return DetectionDataset(
            Texts.of(file for file, _, _ in images),
            LabelTable.joined(tables),
            self.names,
            Texts.of(file for _, file, _ in images),
            np.array([size for _, _, size in images], np.int64).reshape(-1, 2),
            Texts.of(places),
            faults,
            folders,
        )

    def _parts(self, entries: Sequence[Entry], firsts: Sequence[int]) -> Iterator[Part]:
        """PART entries from each of these on; if there are many, several processes read them."""

        def read(first: int) -> Part:
            return self.read_part(entries[first : first + PART])

        cores = available_cores()
        done = 0
        is_daemon = multiprocessing.current_process().daemon  # it may have no children
        if len(entries) >= PARALLEL and start_method() == "fork" and cores > 1 and not is_daemon:
            context = multiprocessing.get_context("fork")
            with (
                suppress(BrokenProcessPool),  # one was killed
                ProcessPoolExecutor(cores, context, _start_process, (read,)) as pool,
            ):
                for part in pool.map(_read_in_process, firsts):
                    yield part
                    done += 1
        yield from map(read, firsts[done:])

    def read_part(self, entries: Sequence[Entry]) -> Part:
        """Some of the images."""
        sizes = image_sizes([entry.image for entry in entries])
        is_remote = any(is_address(entry.file) for entry in entries)
        sized_entries = list(zip(entries, sizes, strict=True))
        contents: list[Any] = list((many if is_remote else map)(self._content, sized_entries))
        images = []
        faults = []
        sizes_of_images = []
        of_images = []  # the objects that can be used
        for (entry, size), labels in zip(sized_entries, contents, strict=True):
            if isinstance(labels, Fault):
                faults.append(labels)
                continue
            objects = labels.objects if labels else []
            for item in objects:
                item.problem = self._problem(item)
            sound = [item for item in objects if not item.problem]
            left_out = [item for item in objects if item.problem]
            faults += [_fault(entry, item) for item in left_out]
            unusable = [item for item in left_out if item.problem != DIFFICULT]
            if unusable and not sound:
                # it is not background: it shows objects
                first = f"{unusable[0].place}, {unusable[0].problem}"
                problem = f"none of its objects can be used, first: {first}"
                faults.append(Fault(entry.image, "", problem, entry.image))
                continue
            of_images.append(sound)
            sizes_of_images.append(size)
            size_in_file = labels.size if labels and labels.size else (0, 0)
            images.append((entry.image, entry.file if labels else "", size_in_file))
        places = [item.place for item in chain.from_iterable(of_images)]
        return Part(images, places, faults, self._table(sizes_of_images, of_images))

    def _content(
        self, sized_entry: tuple[Entry, tuple[int, int] | str]
    ) -> ImageLabels | Fault | None:
        """The labels of an image, or why it is left out; its size is as of `image_sizes`."""
        entry, size = sized_entry
        if isinstance(size, str):
            return Fault(entry.image, "", size, entry.image)
        try:
            labels = self.format.read(entry, *size)
            for further in self.further.get(entry.image, ()):
                if listed := self.format.read(further, *size):
                    labels = _joined(labels, listed, entry.file, further.file)
            return labels
        except InputError as e:
            problem = str(e).removeprefix(f"{entry.file}: ")
            return Fault(entry.file, "", problem, entry.image)

    def _problem(self, item: LabelObject) -> str:
        """Why an object cannot be used, or an empty string."""
        if item.problem:
            return item.problem
        corners = array("f", map(float, item.box)).tolist()  # float32, as they are kept
        x1, y1, x2, y2 = corners
        if not all(map(math.isfinite, corners)):
            return "missing or non-finite coordinate"
        if max(map(abs, corners)) >= FARTHEST:
            return f"coordinate beyond {FARTHEST:.0f} px"
        if x1 >= x2 or y1 >= y2:
            return "zero or negative width or height"
        if self.single_class or item.name in self.numbers:
            return ""
        return f"unknown class {item.name!r}: it is not among the {len(self.names)} names"

    def _table(self, sizes: Sequence[Any], of_images: Sequence[list[LabelObject]]) -> LabelTable:
        """The objects of images of these (height, width)."""
        objects = list(chain.from_iterable(of_images))
        polygons = [item.polygons for item in objects]
        parts = list(chain.from_iterable(polygons))
        boxes = np.array([item.box for item in objects], np.float32).reshape(-1, 4)
        areas = np.array([item.area for item in objects], np.float32)
        classes = [0 if self.single_class else self.numbers[item.name] for item in objects]
        return LabelTable(
            sizes=np.array(sizes, np.int64).reshape(-1, 2),
            starts=starts(of_images),
            boxes=boxes,
            classes=np.array(classes, np.int64),
            crowd=np.array([item.crowd for item in objects], bool),
            area=np.where(np.isnan(areas), area_xyxy(boxes), areas),
            part_starts=starts(polygons),
            point_starts=starts(parts),
            points=np.concatenate([np.zeros((0, 2))] + parts, dtype=np.float32),
        )


_read_part: Callable[[int], Part]  # of a process that reads


def _start_process(read: Callable[[int], Part]) -> None:
    """What a process that reads does first; it is a fork, so that nothing is copied."""
    global _read_part
    _read_part = read
    prepare_worker(0)


def _read_in_process(first: int) -> Part:
    return _read_part(first)


def _joined(
    labels: ImageLabels | None, listed: ImageLabels, file: str, further: str
) -> ImageLabels:
    """The labels of an image by its label file, and what a further one, or the same again, lists of
    it. Objects that were listed before get a problem."""
    if labels is None:
        labels = ImageLabels([], listed.size)
    objects = list(labels.objects)
    listed_before = {(item.name, tuple(item.box)) for item in objects}
    for item in listed.objects:
        item = replace(item)  # a format may keep its own
        if further != file:
            item.place += f", which {further} lists"
        if (item.name, tuple(item.box)) in listed_before and not item.problem:
            item.problem = "duplicate of an earlier object"
        objects.append(item)
    return ImageLabels(objects, labels.size)


def _fault(entry: Entry, item: LabelObject) -> Fault:
    box = list(map(float, item.box))
    shown = box if all(map(math.isfinite, box)) else None
    return Fault(entry.file, item.place, item.problem, entry.image, shown)
