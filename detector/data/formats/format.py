"""The protocol of a label format: find the images of a split and their label files, read these,
write a repaired copy.

Reader (`read_split.py`), data set file, doctor and repair know formats by this alone. A format is
one file and one row of the table in `formats/__init__.py`; one of a user's own needs no row
(docs/formats.md).
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from boltbox.detector.data.cache.labels import Origins
from boltbox.detector.data.images import SUFFIXES, find_images
from boltbox.detector.data.report import Fault, Remark

NO_BOX = (math.nan,) * 4
_UNREAD = {".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".pgm", ".pnm", ".ppm"}


@dataclass
class Split:
    """Where one split of a data set is.

    name: train, val or test · paths: what the data set's file gives for it, resolved · root: the
    data set's folder · folders: further folders of images (the key `images`) · keep_difficult:
    objects marked difficult are used · origins: files and folders that decide what the split holds,
    for the cache.
    """

    name: str
    paths: list[Path]
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
    · area: square pixels, None: of the box · raw: what `write` needs to write it again.
    """

    place: str
    name: str | int
    box: Sequence[float]
    problem: str = ""
    polygons: list[np.ndarray] = field(default_factory=list)
    crowd: bool = False
    area: float | None = None
    raw: Any = None


@dataclass
class ImageLabels:
    """What a label file says of one image.

    objects: all, in their order · size: (height, width) that it gives the image, or None ·
    filename: of the image that it says it belongs to, or "" · raw: what `write` needs besides the
    objects.
    """

    objects: list[LabelObject]
    size: tuple[int, int] | None = None
    filename: str = ""
    raw: Any = None


@dataclass
class RepairedImage:
    """An image of a repaired copy.

    name: its path below the copy's `image_folder` · size: height, width in pixels · labels: None if
    there is no label file · objects: those that stay, each with the box that it gets, None: as it
    is · changed: an object was dropped or got a box.
    """

    entry: Entry
    name: str
    size: tuple[int, int]
    labels: ImageLabels | None
    objects: list[tuple[LabelObject, Sequence[float] | None]]
    changed: bool


class Format(ABC):
    """A label format. An object of it reads one split, once: first `find`, then `read` for each of
    the entries.

    wants: what a split's value must be, for messages · shared: a label file speaks of many images
    (reports then name the image) · lists_names: `find_names` gives them in an order of their own;
    else they are sorted · in_fractions: boxes are written as fractions of the image, so that they
    fit any size of it.
    """

    wants: ClassVar[str]
    shared: ClassVar[bool] = False
    lists_names: ClassVar[bool] = False
    in_fractions: ClassVar[bool] = False

    def __init__(self, split: Split) -> None:
        self.split = split
        self.faults: list[Fault] = []  # of objects that belong to no image; `find` fills it

    # Find

    @classmethod
    def recognises(cls, root: Path, path: Path) -> bool:
        """Whether a data.yaml that names no format means this one, by the first path of its first
        split."""
        return False

    @classmethod
    def accepts(cls, path: Path) -> bool:
        """Whether a path that is there can be a split's value."""
        return path.suffix.lower() not in SUFFIXES

    @classmethod
    def find_splits(cls, root: Path) -> dict[str, list[Path]]:
        """The splits of a folder without a data.yaml; none if it is not of this format."""
        return {}

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """The class names that the labels hold; none if only a data.yaml can give them."""
        return []

    @abstractmethod
    def find(self) -> list[Entry]:
        """The images of `self.split`, in the order of the data set. Files and folders that decide
        which they are, other than `split.paths`, the images and their label files, go to
        `self.split.origins.note` before they are looked at."""

    # Read

    @abstractmethod
    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        """What the label file says of an image of this size in pixels; None if there is no label
        file.

        Raises:
            InputError: "FILE: why": the label file cannot be used; the image is left out.
        """

    # Write

    @property
    def image_folder(self) -> str:
        """Where a repaired copy has the split's images, below its own folder."""
        return f"images/{self.split.name}"

    @abstractmethod
    def write(self, folder: Path, images: Sequence[RepairedImage]) -> tuple[str, list[str]]:
        """Write the labels of a repaired copy of the split; its images are written already.

        Returns:
            The split's value in the copy's data.yaml; "FILE, place: what was done" for each repair
                but those of objects.
        """

    # Doctor

    def label_folders(self, images: Iterable[str]) -> dict[Path, set[Path]]:
        """The folders of label files, there or not, each with the folders of the images that it is
        for."""
        return {}

    @classmethod
    def examine(
        cls, splits: Mapping[str, tuple[Format, Sequence[str], Mapping[str, list[str]]]]
    ) -> Iterator[Remark]:
        """What is wrong in the folders: files that nothing refers to, or that several things do.

        Args:
            splits: by name: an object of the split, all its images, and the images in use by label
                file.
        """
        used = {Path(os.path.abspath(image)) for _, paths, _ in splits.values() for image in paths}
        for folder in sorted({path.parent for path in used if path.parent.is_dir()}):
            files = sorted(folder.iterdir())
            for path in files:
                if path.suffix.lower() in _UNREAD:
                    problem = f"images of the kind {path.suffix} are not read; convert it"
                    yield Remark("warning", "unread_image", str(path), "", problem)
            images = {path for path in files if path.suffix.lower() in SUFFIXES}
            unused = sorted(images - used)
            if unused:
                problem = f"{len(unused)} images here are in no split, for example {unused[0].name}"
                yield Remark("note", "unlisted_images", str(folder), "", problem)


def whole_size(height: object, width: object) -> tuple[int, int] | None:
    """The size that a label file gives; None where it gives none (left out, no numbers, 0 x 0)."""
    try:
        size = int(str(height)), int(str(width))
    except ValueError:
        return None
    return size if 0 < min(size) <= max(size) < 2**31 else None
