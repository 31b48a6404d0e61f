"""Label files -> DetectionDataset, whatever the format.

A bad box is dropped and named, not its image; an image is dropped only if it cannot be used at all.
"""

import inspect
import os
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain

import numpy as np

from boltbox.detector.data.cache.labels import (
    cache_folder,
    digest,
    load_labels,
    save_labels,
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
)
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.label_table import LabelSource, LabelTable, starts
from boltbox.detector.model.boxes import area_xyxy
from boltbox.detector.system.addresses import read_ahead
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import progress

VERSION = 8  # raise it with any change to what is read from a file


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


class SplitReader:
    """Reads one split.

    Args:
        label_format: of the split.
        names: class names in order.
        strict: an object whose class has no name is an error; else it is dropped.
        single_class: every object is of class 0, named `item` unless there is just one name.
    """

    def __init__(
        self,
        label_format: Format,
        names: list[str],
        strict: bool = True,
        single_class: bool = False,
    ) -> None:
        self.format = label_format
        self.names = ["item"] if single_class and len(names) > 1 else names
        self.strict = strict
        self.single_class = single_class
        self.files: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self.objects: list[list[LabelObject]] = []
        self.sources: list[LabelSource] = []
        self.faults: list[Fault] = []
        self.numbers: dict[str | int, int] = {}  # of classes, by name and by number
        for number, name in enumerate(self.names):
            self.numbers[name] = number
            self.numbers[number] = number

    def read(self) -> DetectionDataset:
        """The split; from the labels cache if no file has changed since it was read.

        Raises:
            InputError: the split cannot be read; or if strict, an object whose class has no name.
        """
        split = self.format.split
        listed = self.format.files
        files_of_split = [str(path) for path in split.paths if not listed.is_folder(path)]
        files_of_split.append(inspect.getfile(type(self.format)))  # a user's own may change
        before = list(map(listed.state_of_one, files_of_split))
        entries = self.format.find()
        if not split.share or split.name == "train":  # else they are reported twice
            self.faults += self.format.faults
        if split.share:
            entries = part_of(entries, split.share, split)
        images = [entry.image for entry in entries]
        files = [entry.file for entry in entries]
        now = list(map(listed.state, images + list(dict.fromkeys(files))))
        stamp = digest([VERSION, self.names, files_of_split, before, images, files, now])
        kind = type(self.format).__qualname__
        place = digest([os.getcwd(), repr(split), kind, self.strict, self.single_class])[:24]
        path = cache_folder() / "labels" / f"{split.name}-{place}.npz"
        if dataset := load_labels(path, stamp):
            return dataset
        if isinstance(self.format, PerImageFormat):
            read_ahead(filter(listed.is_file, files))
        sized = zip(entries, image_sizes(images), strict=True)
        for entry, size in progress(sized, f"{split.name}: reading labels", len(entries)):
            self._read_entry(entry, size)
        dataset = DetectionDataset(self.files, self._table(), self.names, self.sources, self.faults)
        save_labels(path, stamp, dataset)
        return dataset

    def _read_entry(self, entry: Entry, size: tuple[int, int] | str) -> None:
        """size: (height, width), or why the image cannot be used."""
        if isinstance(size, str):
            self._leave_out(entry, entry.image, size)
            return
        try:
            labels = self.format.read(entry, *size)
        except InputError as e:
            self._leave_out(entry, entry.file, str(e).removeprefix(f"{entry.file}: "))
        else:
            self._add(entry, labels, *size)

    def _leave_out(self, entry: Entry, file: str, problem: str) -> None:
        self.faults.append(Fault(file, "", problem, entry.image))

    def _add(self, entry: Entry, labels: ImageLabels | None, height: int, width: int) -> None:
        """An image of this size in pixels."""
        objects = labels.objects if labels else []
        boxes = np.array([item.box for item in objects], np.float64).reshape(-1, 4)
        kept: list[LabelObject] = []
        reasons = []
        for item, box, box_problem in zip(objects, boxes, box_problems(boxes), strict=True):
            problem = item.problem or box_problem or self._class_problem(entry, item)
            if not problem:
                kept.append(item)
                continue
            known_box = box.tolist() if np.isfinite(box).all() else None
            self.faults.append(Fault(entry.file, item.place, problem, entry.image, known_box))
            if problem != DIFFICULT:
                reasons.append(f"{item.place}, {problem}")
        if reasons and not kept:
            # no background: it shows objects whose boxes are unknown
            problem = f"none of its objects can be used, first: {reasons[0]}"
            self._leave_out(entry, entry.image, problem)
            return
        self.files.append(entry.image)
        self.sizes.append((height, width))
        self.objects.append(kept)
        source = LabelSource()
        if labels:
            source = LabelSource(entry.file, [item.place for item in kept], labels.size)
        self.sources.append(source)

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
        return f"unknown class {item.name!r}: it is not among the {len(self.names)} names"

    def _table(self) -> LabelTable:
        """The objects of all images."""
        items = list(chain.from_iterable(self.objects))
        polygons = [item.polygons for item in items]
        parts = list(chain.from_iterable(polygons))
        boxes = np.array([item.box for item in items], np.float32).reshape(-1, 4)
        areas = np.array([item.area for item in items], np.float32)
        classes = [0 if self.single_class else self.numbers[item.name] for item in items]
        points = [np.zeros((0, 2), np.float32)] + parts
        return LabelTable(
            sizes=np.array(self.sizes, np.int64).reshape(-1, 2),
            starts=starts(self.objects),
            boxes=boxes,
            classes=np.array(classes, np.int64),
            crowd=np.array([item.crowd for item in items], bool),
            area=np.where(np.isnan(areas), area_xyxy(boxes), areas),
            part_starts=starts(polygons),
            point_starts=starts(parts),
            points=np.concatenate(points, dtype=np.float32),
        )


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
