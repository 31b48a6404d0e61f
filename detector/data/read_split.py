"""Label files -> DetectionDataset, whatever the format.

A bad box is dropped and named, not its image; an image is dropped only if it cannot be used at all.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from os.path import isdir
from pathlib import Path

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats.format import (
    FARTHEST,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
)
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.label_table import LabelSource
from boltbox.detector.data.report import DataReport, Fault
from boltbox.detector.data.sample import Labels
from boltbox.detector.system.errors import InputError


@dataclass(frozen=True)
class Part:
    """One of the two parts of a list of images.

    Images are ranked by the SHA-256 of their path below `root`; the first ones are for validation.
    So the parts do not depend on the order of the list, on the machine or on where the folder lies,
    and a new image moves at most one other.

    share: of the images that is for validation · val: whether this is that part · root: folder of
    the data set.
    """

    share: float
    val: bool
    root: Path

    def of(self, paths: Sequence[str]) -> list[str]:
        """Those of the paths that belong to this part, in their order; each part has one at least,
        if there are two."""

        def rank(path: str) -> bytes:
            return sha256(os.fsencode(os.path.relpath(path, self.root))).digest()

        ranked = sorted(set(paths), key=rank)
        count = min(max(round(len(ranked) * self.share), 1), len(ranked) - 1)
        chosen = set(ranked[:count])
        return [path for path in paths if (path in chosen) == self.val]


@dataclass
class SplitReader:
    """Reads one split.

    form: its format · names: class names in order · strict: refuse objects whose class name is not
    among the names, and leave class numbers without a name to `check_classes`, which refuses them;
    else drop them · part: only these images.
    """

    form: Format
    names: list[str]
    strict: bool = True
    part: Part | None = None
    report: DataReport = field(default_factory=DataReport, init=False)
    files: list[str] = field(default_factory=list, init=False)
    labels: list[Labels] = field(default_factory=list, init=False)
    sources: list[LabelSource] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.numbers: dict[str | int, int] = {name: c for c, name in enumerate(self.names)}
        self.numbers |= {c: c for c in range(len(self.names))}

    def read(self) -> DetectionDataset:
        """
        Raises:
            InputError: the split cannot be read; or if strict, an object whose class has no name.
        """
        form, origins = self.form, self.form.split.origins
        origins.note(path for path in form.split.paths if not isdir(path))
        origins.note([inspect.getfile(type(form))])  # a user's own may change
        entries = form.find()
        if not self.part or not self.part.val:  # else they are reported twice
            self.report.faults += form.faults
        images = [entry.image for entry in entries]
        if self.part:
            images = self.part.of(images)
            own = set(images)
            entries = [entry for entry in entries if entry.image in own]
        origins.note(images)
        origins.note(entry.file for entry in entries)
        for entry, size in zip(entries, image_sizes(images), strict=True):
            if isinstance(size, str):
                self._lose(entry, entry.image, size)
                continue
            try:
                found = form.read(entry, *size)
            except InputError as e:
                self._lose(entry, entry.file, str(e).removeprefix(f"{entry.file}: "))
            else:
                self._add(entry, found, *size)
        return DetectionDataset(self.files, self.labels, self.names, self.report, self.sources)

    def _lose(self, entry: Entry, file: str, problem: str) -> None:
        self.report.lost_images.append(Fault(file, "", problem, entry.image))

    def _add(self, entry: Entry, found: ImageLabels | None, height: int, width: int) -> None:
        """An image of this size in pixels."""
        self.report.unlabelled += found is None
        labels = found or ImageLabels([])
        boxes = np.array([item.box for item in labels.objects], np.float64).reshape(-1, 4)
        kept, faults = [], []
        for k, problem in enumerate(box_problems(boxes)):
            item = labels.objects[k]
            if problem := item.problem or problem or self._class_problem(entry, item):
                box = boxes[k].tolist() if np.isfinite(boxes[k]).all() else None
                faults.append(Fault(entry.file, item.place, problem, entry.image, box))
            else:
                kept.append(k)
        self.report.faults += faults
        # left out on purpose
        reasons = [fault for fault in faults if fault.kind != "difficult_object"]
        if reasons and not kept:
            # no background: it shows objects, and nobody knows where
            first = f"{reasons[0].where}, {reasons[0].problem}"
            self._lose(entry, entry.image, f"none of its objects can be used, first: {first}")
            return
        items = [labels.objects[k] for k in kept]
        self.files.append(entry.image)
        self.labels.append(self._labels(items, boxes[kept], height, width))
        places = [item.place for item in items]
        file = entry.file if found else ""
        self.sources.append(LabelSource(file, places, labels.size, labels.filename))

    def _class_problem(self, entry: Entry, item: LabelObject) -> str:
        """Why the class of an object cannot be used, or an empty string.

        Raises:
            InputError: if strict, it has no name.
        """
        name = item.name
        if name in self.numbers:
            return ""
        if self.strict and isinstance(name, str):
            place = item.place.removesuffix(f" ({name})")
            raise InputError(
                f"{entry.file}: {place} is a '{name}', which is not among the names"
                f" {self.names}; add it"
            )
        if self.strict and isinstance(name, int) and name > 0:
            return ""
        return f"unknown class {name!r}: it is none of the data set's {len(self.names)}"

    def _labels(
        self, items: Sequence[LabelObject], boxes: np.ndarray, height: int, width: int
    ) -> Labels:
        classes = [self.numbers.get(item.name, item.name) for item in items]
        polygons, crowd = [item.polygons for item in items], [item.crowd for item in items]
        labels = Labels.of(boxes, classes, height, width, polygons, crowd)
        areas = np.array([item.area for item in items], np.float32)  # None: NaN
        return replace(labels, area=np.where(np.isnan(areas), labels.area, areas))


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
