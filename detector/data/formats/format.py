"""The protocol of a label format: find the images of a split and their label files, and read these.

The reader (`read_split.py`) knows formats by this alone. A format is one file and one row of the
table in `formats/__init__.py`; one of a user's own needs no row (docs/formats.md).
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from boltbox.detector.data.cache.labels import Origins
from boltbox.detector.data.images import find_images
from boltbox.detector.data.report import Fault

NO_BOX = (math.nan,) * 4
FARTHEST = 2.0**24  # pixels; beyond, float32 cannot tell neighbours apart


@dataclass
class Split:
    """Where one split of a data set is.

    name: train, val or test · paths: what the data set's file gives for it, resolved · root: the
    data set's folder · folders: further folders of images (the key `images`) · keep_difficult:
    objects marked difficult are used · origins: files and folders that decide what the split holds,
    for the cache.
    """

    name: str
    paths: Sequence[Path]
    root: Path
    folders: list[Path] = field(default_factory=list)
    keep_difficult: bool = False
    origins: Origins = field(default_factory=Origins)

    def find_images(self, folder: Path) -> list[Path]:
        """The image files of a folder and its subfolders, sorted."""
        self.origins.note(at for at, _, _ in os.walk(folder))
        return find_images(folder)


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
    · area: square pixels, None: of the box.
    """

    place: str
    name: str | int
    box: Sequence[float] | np.ndarray
    problem: str = ""
    polygons: list[np.ndarray] = field(default_factory=list)
    crowd: bool = False
    area: float | None = None


@dataclass
class ImageLabels:
    """What a label file says of one image.

    objects: all, in their order · size: (height, width) that it gives the image, or None ·
    filename: of the image that it says it belongs to, or "".
    """

    objects: list[LabelObject]
    size: tuple[int, int] | None = None
    filename: str = ""


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
        """The images of `self.split`, in the order of the data set. Files and folders that decide
        which they are, other than `split.paths`, the images and their label files, go to
        `self.split.origins.note` before they are looked at."""

    @abstractmethod
    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        """What the label file says of an image of this size in pixels; None if there is no label
        file.

        Raises:
            InputError: "FILE: why": the label file cannot be used; the image is left out.
        """


def whole_size(height: object, width: object) -> tuple[int, int] | None:
    """The size that a label file gives; None where it gives none (left out, no numbers, 0 x 0)."""
    try:
        size = int(str(height)), int(str(width))
    except ValueError:
        return None
    return size if 0 < min(size) <= max(size) < 2**31 else None
