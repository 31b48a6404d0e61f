"""Label files -> DetectionDataset, whatever the format.

A bad box is dropped and named, not its image; an image is dropped only if it cannot be used at all.
"""

import inspect
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from os.path import isdir

import numpy as np

from boltbox.detector.data.cache.labels import (
    cache_folder,
    digest,
    load_labels,
    save_labels,
    states,
)
from boltbox.detector.data.datasets import DetectionDataset, Fault
from boltbox.detector.data.formats.format import (
    DIFFICULT,
    FARTHEST,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    Split,
)
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.label_table import LabelSource, LabelTable, starts
from boltbox.detector.model.boxes import area_xyxy
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import progress

VERSION = 8  # raise it with any change to what is read from a file
# A file system's clock ticks this seldom, in nanoseconds: of two changes within a tick the second
# may leave the time as it was.
_TICK = 20_000_000


def part_of(entries: Sequence[Entry], share: float, split: Split) -> list[Entry]:
    """Those of `train` or of `val`, in their order; each has one image at least, if there are two.

    Images are ranked by the SHA-256 of their path below the root; the first ones, a share of all,
    are for validation. So the parts do not depend on the order of the list, on the machine or on
    where the folder lies, and a new image moves at most one other.
    """

    def rank(path: str) -> bytes:
        return sha256(os.fsencode(os.path.relpath(path, split.root))).digest()

    ranked = sorted({entry.image for entry in entries}, key=rank)
    count = min(max(round(len(ranked) * share), 1), len(ranked) - 1)
    chosen = set(ranked[:count])
    return [entry for entry in entries if (entry.image in chosen) == (split.name == "val")]


@dataclass
class SplitReader:
    """Reads one split.

    form: its format · names: class names in order · strict: an object whose class has no name is an
    error; else it is dropped · single_class: every object is of class 0, named `item` unless there
    is just one name.
    """

    form: Format
    names: list[str]
    strict: bool = True
    single_class: bool = False

    def __post_init__(self) -> None:
        self.files: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self.objects: list[list[LabelObject]] = []
        self.sources: list[LabelSource] = []
        self.faults: list[Fault] = []
        if self.single_class and len(self.names) > 1:
            self.names = ["item"]
        self.numbers = {key: c for c, name in enumerate(self.names) for key in (name, c)}

    def read(self) -> DetectionDataset:
        """The split; from the labels cache if no file has changed since it was read.

        Raises:
            InputError: the split cannot be read; or if strict, an object whose class has no name.
        """
        split = self.form.split
        given = [str(path) for path in split.paths if not isdir(path)]
        try:
            given.append(inspect.getfile(type(self.form)))  # a user's own may change
        except OSError:
            raise InputError(
                f"data.format {type(self.form).__name__}: define it in a file, not in a notebook"
            ) from None
        before = states(given)
        entries = self.form.find()
        if not split.share or split.name == "train":  # else they are reported twice
            self.faults += self.form.faults
        if split.share:
            entries = part_of(entries, split.share, split)
        images, files = [e.image for e in entries], [e.file for e in entries]
        now = states([*images, *dict.fromkeys(files)])
        stamp = digest([VERSION, self.names, given, before, images, files, now])
        kind = type(self.form).__qualname__
        place = digest([os.getcwd(), repr(split), kind, self.strict, self.single_class])[:24]
        path = cache_folder() / "labels" / f"{split.name}-{place}.npz"
        if found := load_labels(path, stamp):
            return found
        if max(changed for _, changed in before + now) > time.time_ns() - _TICK:
            time.sleep(_TICK / 1e9)  # a change from here on has another time
        pairs = zip(entries, image_sizes(images), strict=True)
        for entry, size in progress(pairs, f"{split.name}: reading labels", len(entries)):
            if isinstance(size, str):
                self._lose(entry, entry.image, size)
                continue
            try:
                labels = self.form.read(entry, *size)
            except InputError as e:
                self._lose(entry, entry.file, str(e).removeprefix(f"{entry.file}: "))
            else:
                self._add(entry, labels, *size)
        dataset = DetectionDataset(self.files, self._table(), self.names, self.sources, self.faults)
        save_labels(path, stamp, dataset)
        return dataset

    def _lose(self, entry: Entry, file: str, problem: str) -> None:
        self.faults.append(Fault(file, "", problem, entry.image))

    def _add(self, entry: Entry, found: ImageLabels | None, height: int, width: int) -> None:
        """An image of this size in pixels."""
        objects = found.objects if found else []
        corners = np.array([item.box for item in objects], np.float64).reshape(-1, 4)
        kept: list[LabelObject] = []
        faults = []
        for item, box, problem in zip(objects, corners, box_problems(corners), strict=True):
            if problem := item.problem or problem or self._class_problem(entry, item):
                known = box.tolist() if np.isfinite(box).all() else None
                faults.append(Fault(entry.file, item.place, problem, entry.image, known))
            else:
                kept.append(item)
        self.faults += faults
        reasons = [fault for fault in faults if fault.problem != DIFFICULT]
        if reasons and not kept:
            # no background: it shows objects whose boxes are unknown
            first = f"{reasons[0].where}, {reasons[0].problem}"
            self._lose(entry, entry.image, f"none of its objects can be used, first: {first}")
            return
        places = [item.place for item in kept]
        self.files.append(entry.image)
        self.sizes.append((height, width))
        self.objects.append(kept)
        self.sources.append(LabelSource(entry.file, places, found.size) if found else LabelSource())

    def _class_problem(self, entry: Entry, item: LabelObject) -> str:
        """Why the class of an object cannot be used, or an empty string.

        Raises:
            InputError: if strict.
        """
        if self.single_class or item.name in self.numbers:
            return ""
        if self.strict:
            place = item.place.removesuffix(f" ({item.name})")
            raise InputError(
                f"{entry.file}: {place} is of class {item.name!r}, which is not among the"
                f" {len(self.names)} names {self.names}; correct the labels or `names`, or use"
                " --data.single_class true"
            )
        return f"unknown class {item.name!r}: it is none of the data set's {len(self.names)}"

    def _table(self) -> LabelTable:
        """The objects of all images."""
        items = [*chain.from_iterable(self.objects)]
        polygons = [item.polygons for item in items]
        parts = [*chain.from_iterable(polygons)]
        boxes = np.array([item.box for item in items], np.float32).reshape(-1, 4)
        areas = np.array([item.area for item in items], np.float32)
        classes = [0 if self.single_class else self.numbers[item.name] for item in items]
        return LabelTable(
            np.array(self.sizes, np.int64).reshape(-1, 2),
            starts(self.objects),
            boxes,
            np.array(classes, np.int64),
            np.array([item.crowd for item in items], bool),
            np.where(np.isnan(areas), area_xyxy(boxes), areas),
            starts(polygons),
            starts(parts),
            np.concatenate([np.zeros((0, 2)), *parts], dtype=np.float32),
        )


def box_problems(boxes: np.ndarray) -> list[str]:
    """What is wrong with each of (n, 4) corner numbers, or an empty string."""
    with np.errstate(over="ignore"):
        corners = boxes.astype(np.float32)  # as they are kept
    wrong = {
        "missing or non-finite coordinate": ~np.isfinite(corners).all(1),
        f"coordinate beyond {FARTHEST:.0f} px": (np.abs(corners) >= FARTHEST).any(1),
        "zero or negative width or height": (corners[:, 2:] <= corners[:, :2]).any(1),
    }
    return np.select([*wrong.values()], [*wrong], "").tolist()
