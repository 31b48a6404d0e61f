"""The protocol of a label format: find the images of a split and their label files, and read these.

The reader (`read_split.py`) knows formats by this alone. A format is one file here and one row of
FORMATS in `dataset_file.py`; one of a user's own needs no row (docs/formats.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from boltbox.detector.data.datasets import Fault
from boltbox.detector.data.images import SUFFIXES, find_images

NO_BOX = (math.nan,) * 4
FARTHEST = 2.0**24  # pixels; beyond, float32 cannot tell neighbours apart
SPLIT_NAMES = {  # of files and folders
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
SPLIT_GLOBS = {  # the same, each also with a year
    split: [name + year for name in names for year in ("", "[12][0-9][0-9][0-9]")]
    for split, names in SPLIT_NAMES.items()
}
DIFFICULT = "marked difficult"  # the problem of an object that is left out on purpose


@dataclass
class Split:
    """Where one split of a data set is.

    name: train, val or test · paths: what the data set's file gives for it, resolved · root: the
    data set's folder · folders: further folders of images (the key `images`) · keep_difficult:
    objects marked difficult are used · share: of the images of train that is val, where both have
    the same paths.
    """

    name: str
    paths: Sequence[Path]
    root: Path
    folders: Sequence[Path] = ()
    keep_difficult: bool = False
    share: float | None = None


class Entry(NamedTuple):
    """An image of a split. image: path · file: the label file that speaks of it, there or not ·
    key: what `read` needs to find its objects in the file, where that speaks of many images."""

    image: str
    file: str
    key: Any = None


@dataclass
class LabelObject:
    """One object as a label file has it, usable or not.

    place: what reports call it ("line 3", "object 2 (cat)") · name: of the class, or its number ·
    box: x1, y1, x2, y2 in pixels of the image; NO_BOX if it cannot be read · problem: why it cannot
    be used, "" if the format finds nothing wrong (class name, size, finite numbers are checked by
    the reader) · polygons: parts (k, 2) float32 xy in pixels · crowd: a region of uncounted objects
    · area: square pixels, NaN: of the box.
    """

    place: str
    name: str | int
    box: Sequence[float] | np.ndarray
    problem: str = ""
    polygons: list[np.ndarray] = field(default_factory=list)
    crowd: bool = False
    area: float = math.nan


@dataclass
class ImageLabels:
    """What a label file says of one image.

    objects: all, in their order · size: (height, width) that it gives the image, or None.
    """

    objects: list[LabelObject]
    size: tuple[int, int] | None = None


class Format(ABC):
    """A label format. An object of it reads one split, once: first `find`, then `read` for each of
    the entries.

    shared: a label file speaks of many images (reports then name the image).
    """

    shared: ClassVar[bool] = False

    def __init__(self, split: Split) -> None:
        self.split = split
        self.faults: list[Fault] = []  # of objects that belong to no image; `find` fills it

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """The class names that the labels hold, in order; none if only a data.yaml can give
        them."""
        return []

    @abstractmethod
    def find(self) -> list[Entry]:
        """The images of `self.split`, in the order of the data set. It is asked at every start;
        `read` only if an image, a label file or one of the files `split.paths` has changed. So a
        label file that is read here has to be one of these."""

    @abstractmethod
    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        """What the label file says of an image of this size in pixels; None if there is no label
        file.

        Raises:
            InputError: "FILE: why": the label file cannot be used; the image is left out.
        """


class PerImageFormat(Format):
    """A label file for each image. A split is a folder of images, or a text file with an image a
    line.

    suffix: of the label files.
    """

    suffix: ClassVar[str]

    @classmethod
    @abstractmethod
    def label_path(cls, image: str) -> str:
        """Where the label file of an image is, or would be."""

    @abstractmethod
    def listed_images(self, source: Path) -> list[Path]:
        """The images that a text file lists."""

    @classmethod
    def label_files(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """Those of all splits that are there."""
        given = [path for paths in splits.values() for path in paths]
        return [e.file for e in cls(Split("", given, root)).find() if isfile(e.file)]

    def find(self) -> list[Entry]:
        images: set[str] = set()
        for source in self.split.paths:
            found = find_images(source) if isdir(source) else self.listed_images(source)
            images |= set(map(str, found))
        return [Entry(image, self.label_path(image)) for image in sorted(images)]


def has_labels(folder: Path, kind: type[PerImageFormat], most: int = 100) -> bool:
    """Whether images of a folder and its subfolders have labels of a format, as far as the first
    ones show."""
    images = islice((str(p) for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES), most)
    return any(isfile(kind.label_path(image)) for image in images)


def find_tail(path: str, *folders: Path) -> Path | None:
    """A path of another place below one of the folders: `../train/images`, `/content/train/images`
    and `data/train/images` are `train/images` there, if that exists. The longest tail counts; a
    last part alone only if it is the whole path."""
    parts = [part for part in Path(path).parts if part not in ("..", "/")]
    tails = (parts[k:] for k in range(len(parts)) if k == 0 or k < len(parts) - 1)
    return next(filter(exists, (at.joinpath(*tail) for tail in tails for at in folders)), None)


def number(value: object) -> float:
    """NaN where it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def corners(box: object) -> tuple[float, ...]:
    """x1, y1, x2, y2 of [x, y, width, height]; NO_BOX if it is none."""
    x, y, w, h = map(number, box) if isinstance(box, list) and len(box) == 4 else NO_BOX
    return x, y, x + w, y + h


def whole_size(height: object, width: object) -> tuple[int, int] | None:
    """The size that a label file gives; None where it gives none (left out, no numbers, 0 x 0)."""
    size = number(height), number(width)
    return (int(size[0]), int(size[1])) if all(0 < side < 2**31 for side in size) else None
