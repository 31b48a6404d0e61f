"""Label files -> DetectionDataset, whatever the format.

A bad box is dropped and named, not its image; an image is dropped only if it cannot be used at all.
"""

import inspect
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset, box_problem, too_many
from boltbox.detector.data.formats.format import Entry, Format, ImageLabels, LabelObject
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.label_table import LabelSource
from boltbox.detector.data.report import DataReport, Fault, Remark, emptied
from boltbox.detector.data.sample import Labels
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import is_dir


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
        names = {path: os.path.relpath(path, self.root).replace(os.sep, "/") for path in paths}
        ranked = sorted(
            names, key=lambda path: sha256(names[path].encode(errors="surrogateescape")).digest()
        )
        count = min(max(round(len(ranked) * self.share), 1), len(ranked) - 1)
        chosen = set(ranked[: max(count, 0)])
        return [path for path in paths if (path in chosen) == self.val]


class SplitReader:
    """Reads one split.

    Args:
        form: its format.
        names: class names in order.
        strict: refuse objects whose class name is not among the names, and leave class numbers
            without a name to `check_classes`, which refuses them; else drop them.
        keep_emptied: images whose objects are all dropped stay, as background; else they are left
            out.
        part: only these images.
    """

    def __init__(
        self,
        form: Format,
        names: list[str],
        strict: bool = True,
        keep_emptied: bool = False,
        part: Part | None = None,
    ) -> None:
        self.form, self.names, self.strict, self.keep_emptied, self.part = (
            form,
            names,
            strict,
            keep_emptied,
            part,
        )
        self.numbers = {name: c for c, name in enumerate(names)}
        self.report = DataReport()
        self.files: list[str] = []
        self.labels: list[Labels] = []
        self.sources: list[LabelSource] = []

    def read(self) -> DetectionDataset:
        """
        Raises:
            InputError: the split cannot be read; or if strict, an object whose class has no name.
        """
        form, origins = self.form, self.form.split.origins
        origins.note(path for path in form.split.paths if not is_dir(path))
        # a format of the user's own, which may change
        if not type(form).__module__.startswith("detector."):
            origins.note([inspect.getfile(type(form))])
        entries = form.find()
        if not self.part or not self.part.val:  # else they are told twice
            self.report.faults += form.faults
        entries = self._own(entries)
        images = [entry.image for entry in entries]
        origins.note(images)
        origins.note(entry.file for entry in entries)
        for entry, size in zip(entries, image_sizes(images), strict=True):
            if isinstance(size, str):
                self._lose(entry.image, size, entry)
            else:
                self._add(entry, *size)
        return DetectionDataset(self.files, self.labels, self.names, self.report, self.sources)

    def _own(self, entries: list[Entry]) -> list[Entry]:
        """Those of the part. Of several label files that speak of many images each is divided on
        its own."""
        if self.part is None:
            return entries
        groups: dict[str, list[str]] = {}
        for entry in entries:
            groups.setdefault(entry.file if self.form.shared else "", []).append(entry.image)
        own = {file: set(self.part.of(images)) for file, images in groups.items()}
        return [
            entry for entry in entries if entry.image in own[entry.file if self.form.shared else ""]
        ]

    def _lose(self, file: str, problem: str, entry: Entry) -> None:
        self.report.lost_images.append(Fault(file, "", problem, entry.image))

    def _add(self, entry: Entry, height: int, width: int) -> None:
        """An image of this size in pixels."""
        try:
            found = self.form.read(entry, height, width)
        except InputError as e:
            self._lose(entry.file, str(e).removeprefix(f"{entry.file}: "), entry)
            return
        labels = found or ImageLabels([])
        if problem := too_many(len(labels.objects)):
            self._lose(entry.image if self.form.shared else entry.file, problem, entry)
            return
        self.report.unlabelled += found is None
        kept: list[LabelObject] = []
        faults: list[Fault] = []
        for item in labels.objects:
            if problem := self.problem(entry, item):
                faults.append(
                    Fault(entry.file, item.place, problem, entry.image, _finite(item.box))
                )
            else:
                kept.append(item)
        self.report.faults += faults
        # left out on purpose
        reasons = [fault for fault in faults if fault.kind != "difficult_object"]
        if reasons and not kept and not self.keep_emptied:
            self.report.lost_images.append(emptied(entry.image, reasons))
            return
        if (
            labels.filename
            and Path(labels.filename.replace("\\", "/")).stem != Path(entry.image).stem
        ):
            problem = f"says that it belongs to {labels.filename}, but is used for {entry.image}"
            self.report.remarks.append(Remark("warning", "wrong_filename", entry.file, "", problem))
        self.files.append(entry.image)
        self.labels.append(self._labels(kept, height, width))
        self.sources.append(
            LabelSource(entry.file if found else "", [item.place for item in kept], labels.size)
        )

    def problem(self, entry: Entry, item: LabelObject) -> str:
        """Why an object cannot be used, or an empty string.

        Raises:
            InputError: if strict, the class has no name.
        """
        problem = item.problem or box_problem(item.box)
        if problem:
            return problem
        count = len(self.names)
        if isinstance(item.name, int):
            nameless = item.name < 0 or (item.name >= count and not self.strict)
            return (
                f"class number {item.name} has no name (the data set has {count}: 0 to {count - 1})"
                if nameless
                else ""
            )
        if item.name in self.numbers:
            return ""
        if self.strict:
            place = item.place.removesuffix(f" ({item.name})")
            raise InputError(
                f"{entry.file}: {place} is a '{item.name}', which is not among the names"
                f" {self.names}; add it"
            )
        return f"class name '{item.name}' is not among the data set's names"

    def _labels(self, items: Sequence[LabelObject], height: int, width: int) -> Labels:
        boxes = np.array([item.box for item in items], np.float64).reshape(-1, 4)
        return Labels.of(
            boxes,
            np.array(
                [
                    item.name if isinstance(item.name, int) else self.numbers[item.name]
                    for item in items
                ]
            ),
            height,
            width,
            [item.polygons for item in items],
            np.array([item.crowd for item in items]),
            (
                None
                if all(item.area is None for item in items)
                else np.array([_area(item) for item in items])
            ),
        )


def _area(item: LabelObject) -> float:
    """In square pixels, that of the box where none is given."""
    x1, y1, x2, y2 = item.box
    return (x2 - x1) * (y2 - y1) if item.area is None else item.area


def _finite(box: Sequence[float]) -> tuple[float, float, float, float] | None:
    x1, y1, x2, y2 = map(float, box)
    return (x1, y1, x2, y2) if all(map(math.isfinite, (x1, y1, x2, y2))) else None
