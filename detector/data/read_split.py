"""Label files -> DetectionDataset, whatever the format.

A bad box is dropped and named, not its image; an image is dropped only if it cannot be used at all.
"""

import inspect
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from os.path import dirname

import numpy as np

from boltbox.detector.data.cache.labels import (
    CacheFile,
    digest,
    load_dataset,
    save_dataset,
)
from boltbox.detector.data.datasets import DetectionDataset, Fault
from boltbox.detector.data.formats.format import (
    DIFFICULT,
    FARTHEST,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    PerImageFormat,
    Split,
    without_collector,
)
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.label_table import (
    LabelSources,
    LabelTable,
    Texts,
    starts,
)
from boltbox.detector.model.boxes import area_xyxy
from boltbox.detector.system.addresses import absolute, read_ahead
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import (
    STOP_SIGNALS,
    available_cores,
    die_with_this_parent,
    start_method,
)
from boltbox.detector.system.rank_zero import progress

PART = 1000  # images that are read at a time
PARALLEL = 4 * PART  # images from which on several processes read
VERSION = 9  # raise it with any change to what is read from a file


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
        return sha256(os.fsencode(os.path.relpath(path, split.root))).digest()

    ranked = sorted({entry.image for entry in entries}, key=rank)
    count = min(max(round(len(ranked) * share), 1), len(ranked) - 1)
    for_validation = set(ranked[:count])
    is_val = split.name == "val"
    return [entry for entry in entries if (entry.image in for_validation) == is_val]


@dataclass
class Part:
    """Some of the images, read.

    Attributes:
        numbers: the place of each usable image among the entries that were read.
        has_file: of each, whether it has a label file.
        sizes: of each (height, width) according to its label file; 0, 0 if that does not say it.
        places: of the objects, see `LabelObject`.
        faults: what was left out.
        unknown: why the first object whose class has no name cannot be used, or "".
        labels: of those that can be used.
    """

    numbers: list[int] = field(default_factory=list)
    has_file: list[bool] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unknown: str = ""
    labels: LabelTable = field(init=False)


class SplitReader:
    """Reads one split.

    Args:
        label_format: of the split.
        names: class names in order.
        strict: an object whose class has no name is an error; else it is dropped.
        single_class: every object is of class 0, named `item` unless there is just one name.
        is_own: the format is the user's own, which must be asked for its entries at each start.
    """

    def __init__(
        self,
        label_format: Format,
        names: list[str],
        strict: bool = True,
        single_class: bool = False,
        is_own: bool = True,
    ) -> None:
        self.format = label_format
        self.names = ["item"] if single_class and len(names) > 1 else names
        self.strict = strict
        self.single_class = single_class
        self.is_own = is_own
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
        places = [list(map(absolute, map(str, paths))) for paths in (folders, split.paths)]
        cache = CacheFile(split.name, [places, split.share, kind, self.single_class], split.root)
        dataset = load_dataset(cache, stamp=stamp) if stamp else None
        if dataset is None:
            listed = self.format.files
            listed.ask(split.paths)
            entries: Sequence[Entry] = []
            if self.is_own:
                listed.ask([inspect.getfile(type(self.format))])
                entries = self._find()
            key = [VERSION, self.names, digest([entry[:2] for entry in entries])]
            dataset = load_dataset(cache, key)
        if dataset is None:
            with without_collector():
                dataset = self._read(entries or self._find())
            save_dataset(cache, key, listed, dataset)
            # in place of the arrays, a map of the file
            dataset = load_dataset(cache, key) or dataset
        if self.strict and dataset.unknown:
            raise InputError(dataset.unknown)
        return dataset

    def _find(self) -> list[Entry]:
        split = self.format.split
        entries = self.format.find()
        if split.share:
            entries = part_of(entries, split.share, split)
        for entry in entries:
            self.format.files.state(entry.image)
            self.format.files.state(entry.file)
        return entries

    def _read(self, entries: Sequence[Entry]) -> DetectionDataset:
        split = self.format.split
        # of a split that is divided, else they are reported twice
        faults = [] if split.share and split.name == "val" else list(self.format.faults)
        parts = []
        total = -(-len(entries) // PART)
        for part in progress(self._parts(entries), f"{split.name}: reading labels", total):
            if self.strict and part.unknown:
                raise InputError(part.unknown)
            parts.append(part)
            faults += part.faults
        kept: list[Entry] = []
        for k, part in enumerate(parts):
            kept += [entries[PART * k + number] for number in part.numbers]
        has_file = chain.from_iterable(part.has_file for part in parts)
        files = [entry.file if has else "" for entry, has in zip(kept, has_file, strict=True)]
        sizes = list(chain.from_iterable(part.sizes for part in parts))
        sources = LabelSources(
            Texts.of(files),
            Texts.of(chain.from_iterable(part.places for part in parts)),
            np.array(sizes, np.int64).reshape(-1, 2),
        )
        dataset = DetectionDataset(
            Texts.of(entry.image for entry in kept),
            LabelTable.joined([part.labels for part in parts]),
            self.names,
            sources,
            faults,
            sorted({(dirname(entry.file), dirname(entry.image)) for entry in entries}),
        )
        dataset.unknown = next(filter(None, (part.unknown for part in parts)), "")
        return dataset

    def _parts(self, entries: Sequence[Entry]) -> Iterator[Part]:
        """Each PART of the entries in turn; if there are many, several processes read them."""
        firsts = range(0, max(len(entries), 1), PART)
        cores = available_cores()
        done = 0
        is_daemon = multiprocessing.current_process().daemon  # it may have no children
        if len(entries) >= PARALLEL and start_method() == "fork" and cores > 1 and not is_daemon:
            context = multiprocessing.get_context("fork")
            arguments = (self, entries)
            with (
                suppress(BrokenProcessPool),  # one was killed
                ProcessPoolExecutor(cores, context, _start_process, arguments) as pool,
            ):
                for part in pool.map(_read_in_process, firsts):
                    yield part
                    done += 1
        for first in firsts[done:]:
            yield self.read_part(entries[first : first + PART])

    def read_part(self, entries: Sequence[Entry]) -> Part:
        """Some of the images."""
        if isinstance(self.format, PerImageFormat):
            read_ahead(filter(self.format.files.is_file, [entry.file for entry in entries]))
        sizes = image_sizes([entry.image for entry in entries])
        contents = list(map(self._content, entries, sizes))
        objects: list[LabelObject] = []
        for content in contents:
            if isinstance(content, ImageLabels):
                objects += content.objects
        boxes = np.array([item.box for item in objects], np.float64).reshape(-1, 4)
        problems = box_problems(boxes)
        part = Part()
        kept: list[int] = []
        counts = []
        last = 0
        for number, (entry, content) in enumerate(zip(entries, contents, strict=True)):
            if isinstance(content, Fault):
                part.faults.append(content)
                continue
            first = last
            last += len(content.objects) if content else 0
            usable = []
            reason = ""
            for k in range(first, last):
                item = objects[k]
                problem = item.problem or problems[k] or self._class_problem(entry, item, part)
                if not problem:
                    usable.append(k)
                    continue
                box = boxes[k].tolist() if np.isfinite(boxes[k]).all() else None
                part.faults.append(Fault(entry.file, item.place, problem, entry.image, box))
                if problem != DIFFICULT:
                    reason = reason or f"{item.place}, {problem}"
            if reason and not usable:
                # no background: it shows objects whose boxes are unknown
                problem = f"none of its objects can be used, first: {reason}"
                part.faults.append(Fault(entry.image, "", problem, entry.image))
                continue
            kept += usable
            counts.append(usable)
            part.numbers.append(number)
            part.has_file.append(content is not None)
            part.sizes.append(content.size if content and content.size else (0, 0))
        items = [objects[k] for k in kept]
        part.places = [item.place for item in items]
        image_sizes_kept = [sizes[number] for number in part.numbers]
        part.labels = self._table(image_sizes_kept, counts, items, boxes[kept])
        return part

    def _content(self, entry: Entry, size: tuple[int, int] | str) -> ImageLabels | Fault | None:
        """The labels of an image, or why it is left out; size: as of `image_sizes`."""
        if isinstance(size, str):
            return Fault(entry.image, "", size, entry.image)
        try:
            return self.format.read(entry, *size)
        except InputError as e:
            problem = str(e).removeprefix(f"{entry.file}: ")
            return Fault(entry.file, "", problem, entry.image)

    def _class_problem(self, entry: Entry, item: LabelObject, part: Part) -> str:
        """Why the class of an object cannot be used, or an empty string."""
        if self.single_class or item.name in self.numbers:
            return ""
        place = item.place.removesuffix(f" ({item.name})")
        part.unknown = part.unknown or (
            f"{entry.file}: {place} is of class {item.name!r}, which is not among the"
            f" {len(self.names)} names {self.names}; correct the labels or `names`, or use"
            " --data.single_class true"
        )
        return f"unknown class {item.name!r}: it is not among the {len(self.names)} names"

    def _table(
        self,
        sizes: Sequence[tuple[int, int] | str],
        of_images: Sequence[Sized],
        items: Sequence[LabelObject],
        corners: np.ndarray,
    ) -> LabelTable:
        """The objects of some images.

        Args:
            sizes: of the images.
            of_images: of each image its objects.
            items: all objects.
            corners: (N, 4) of the objects.
        """
        polygons = [item.polygons for item in items]
        parts = list(chain.from_iterable(polygons))
        boxes = corners.astype(np.float32)
        areas = np.array([item.area for item in items], np.float32)
        classes = [0 if self.single_class else self.numbers[item.name] for item in items]
        points = [np.zeros((0, 2), np.float32)] + parts
        return LabelTable(
            sizes=np.array(sizes, np.int64).reshape(-1, 2),
            starts=starts(of_images),
            boxes=boxes,
            classes=np.array(classes, np.int64),
            crowd=np.array([item.crowd for item in items], bool),
            area=np.where(np.isnan(areas), area_xyxy(boxes), areas),
            part_starts=starts(polygons),
            point_starts=starts(parts),
            points=np.concatenate(points, dtype=np.float32),
        )


_reader: SplitReader | None = None  # of a process that reads, with its entries
_entries: Sequence[Entry] = ()


def _start_process(reader: SplitReader, entries: Sequence[Entry]) -> None:
    """What a process that reads does first; it is a fork, so that nothing is copied."""
    global _reader, _entries
    _reader = reader
    _entries = entries
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    die_with_this_parent()


def _read_in_process(first: int) -> Part:
    assert _reader
    return _reader.read_part(_entries[first : first + PART])


def box_problems(boxes: np.ndarray) -> list[str]:
    """What is wrong with each of (n, 4) corner numbers, or an empty string."""
    with np.errstate(over="ignore"):
        corners = boxes.astype(np.float32)  # as they are kept
    not_finite = ~np.isfinite(corners).all(1)
    far = (np.abs(corners) >= FARTHEST).any(1)
    empty = (corners[:, 2:] <= corners[:, :2]).any(1)
    problems = (
        "missing or non-finite coordinate",
        f"coordinate beyond {FARTHEST:.0f} px",
        "zero or negative width or height",
    )
    return np.select([not_finite, far, empty], problems, "").tolist()
