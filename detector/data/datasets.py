"""Images with labels on disk -> Samples, whatever the label format; `read_split.py` makes them of
files."""

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from boltbox.detector.data.images import read_image
from boltbox.detector.data.label_table import LabelTable, Texts
from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.system.rank_zero import amount

LISTED = 10  # faults of a split that are printed
_KINDS = {  # how a reason begins -> its slug; of others it is malformed_label
    "zero": "zero_size_box",
    "duplicate": "duplicate_box",
    "unknown class": "unknown_class",
    "marked difficult": "difficult_object",
    "its image": "orphan_labels",
}


class Fault(NamedTuple):
    """An object or an image that was left out.

    Attributes:
        file: image or label file.
        where: place of the object in it ("line 3", "object 2"), "" for an image.
        problem: the reason.
        image: the image file that it is about, "" if there is none.
        box: of a dropped object, xyxy in pixels of the image, if it could be read.
    """

    file: str
    where: str
    problem: str
    image: str = ""
    box: Sequence[float] | None = None

    @property
    def kind(self) -> str:
        """A slug that scripts can filter by, for example zero_size_box."""
        if self.file == self.image:
            return "unusable_image"
        for start, kind in _KINDS.items():
            if self.problem.startswith(start):
                return kind
        return "malformed_label"

    def __str__(self) -> str:
        place = f"{self.file}, {self.where}" if self.where else self.file
        return f"{place}: {self.problem}"


@dataclass(eq=False)
class DetectionDataset:
    """Images with labels; item i is the i-th Sample at the file's own resolution, without crowd
    regions.

    Attributes:
        files: image paths.
        labels: their Labels.
        names: class names.
        label_files: of each image, "" if there is none.
        label_sizes: (n, 2) int64 height, width of each image according to its label file; 0, 0 if
            that does not say it.
        places: what reports call each object ("line 3", "object 2 (cat)").
        faults: what was left out, images first.
        folders: pairs of a folder of label files and one of the images that they belong to.
        fingerprint: number of images, number of objects, and a checksum of file names and labels,
            which tell whether the data of a training has changed; images are not opened.
        stamp: names its content in the labels cache, if that could be written.
    """

    files: Sequence[str]
    labels: LabelTable
    names: list[str]
    label_files: Texts
    label_sizes: np.ndarray
    places: Texts
    faults: list[Fault]
    folders: Sequence[tuple[str, str]]
    fingerprint: list[int] = field(default_factory=list)
    stamp: str = ""

    def __post_init__(self) -> None:
        self.faults.sort(key=lambda fault: fault.where != "")
        if not self.fingerprint:
            checksum = zlib.crc32(os.fsencode("/".join(map(os.path.basename, self.files))))
            for array in vars(self.labels).values():
                checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
            self.fingerprint = [len(self), len(self.labels.boxes), checksum]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        boxes, classes, polygons = self.labels.counted(i)
        image = read_image(self.files[i])
        frame = LetterboxInfo(*image.shape[:2])
        return Sample(image, boxes.copy(), classes.copy(), polygons, frame, i)

    @property
    def unlabelled(self) -> int:
        """Number of images without a label file."""
        return int((self.label_files.lengths == 0).sum())

    def summary(self) -> list[str]:
        """A line of counts, then the first names of what was left out; the run's dropped.txt has
        them all."""
        counts = [amount(len(self), "image"), amount(len(self.labels.boxes), "box")]
        crowd = self.labels.crowd.sum()
        if crowd:  # the metrics count no objects there
            counts.append(f"{crowd} of them crowd regions")
        background = int((np.diff(self.labels.starts) == 0).sum())
        if background:
            without_file = f"{self.unlabelled} without a label file"
            counts.append(f"{amount(background, 'image')} without objects ({without_file})")
        boxes = sum(fault.where != "" for fault in self.faults)
        images = len(self.faults) - boxes
        if boxes:
            counts.append(f"{amount(boxes, 'box')} dropped")
        if images:
            counts.append(f"{amount(images, 'image')} dropped")
        lines = [", ".join(counts)]
        lines += [f"  left out: {fault}" for fault in self.faults[:LISTED]]
        if len(self.faults) > LISTED:
            lines.append(f"  ... and {len(self.faults) - LISTED} more, all in dropped.txt")
        return lines

    def class_counts(self) -> np.ndarray:
        """(C,) number of boxes per class, without crowd regions."""
        return np.bincount(self.labels.classes[~self.labels.crowd], minlength=len(self.names))
