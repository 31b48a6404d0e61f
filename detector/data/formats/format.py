"""The protocol of a label format: find the images of a split and their label files, and read these.

`read_split.py` uses formats through it only. A format is a class here and a row of FORMATS in
`dataset_file.py`; one of a user's own needs no row (docs/formats.md).
"""

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from boltbox.detector.data.class_names import MOST_NUMBERS
from boltbox.detector.data.datasets import Fault
from boltbox.detector.data.file_list import FileList
from boltbox.detector.system.errors import InputError

NO_BOX = (math.nan,) * 4
FARTHEST = 2.0**24  # pixels; beyond, float32 cannot tell neighbours apart
CORNERS = ("xmin", "ymin", "xmax", "ymax")
SPLIT_NAMES = {  # of files and folders
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
DIFFICULT = "marked difficult"  # the problem of an object that is left out on purpose


@dataclass(frozen=True)
class Split:
    """Where one split of a dataset is.

    Attributes:
        name: train, val or test.
        paths: those that the dataset's file gives for it, resolved.
        root: the dataset's folder.
        folders: further folders of images (the key `images`).
        share: of the images of train that is val, if both have the same paths.
    """

    name: str
    paths: Sequence[Path]
    root: Path
    folders: Sequence[Path] = ()
    share: float | None = None


class Entry(NamedTuple):
    """An image of a split.

    Attributes:
        image: path.
        file: path of its label file, which need not exist.
        key: what `read` needs to find the objects in a label file of many images.
    """

    image: str
    file: str
    key: Any = None


@dataclass
class LabelObject:
    """One object of a label file, usable or not.

    Attributes:
        place: what reports call it ("line 3", "object 2 (cat)").
        name: of the class, or its number.
        box: x1, y1, x2, y2 in pixels of the image; NO_BOX if it cannot be read.
        problem: why it cannot be used, "" if the format finds nothing wrong. Class name, size and
            finite numbers are checked by the reader.
        polygons: parts (k, 2) float32 xy in pixels.
        crowd: a region of uncounted objects.
        area: square pixels; NaN: that of the box.
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
    """The labels of one image.

    Attributes:
        objects: all, in the order of the file.
        size: (height, width) of the image according to the file, or None.
    """

    objects: list[LabelObject]
    size: tuple[int, int] | None = None


class Format(ABC):
    """A label format. An object of it reads one split, once: first `find`, then `read` for each of
    the entries.

    Args:
        split: what to read.

    Attributes:
        faults: objects that belong to no image; `find` fills it.
        files: the images and label files that there are.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self.faults: list[Fault] = []
        self.files = FileList(with_states=True)

    @classmethod
    def find_names(
        cls, root: Path, splits: Mapping[str, Sequence[Path]], files: FileList
    ) -> list[str]:
        """The class names in the labels, for a dataset that does not give them.

        Args:
            root: folder of the dataset.
            splits: paths by split.
            files: records which files were asked for, with their states.

        Returns:
            Texts in alphabetical order; else numbers up to the largest; none if that is no number
            of classes.
        """
        names: set[str | int] = set()
        for split, paths in splits.items():
            reader = cls(Split(split, paths, root))
            reader.files = files
            for path in paths:
                files.state(path)
            for entry in reader.find():
                with suppress(InputError):  # named when the dataset is read
                    labels = reader.read(entry, 1, 1)
                    names.update(item.name for item in (labels.objects if labels else ()))
        texts = sorted(name for name in names if isinstance(name, str) and name)
        largest = max((name for name in names if isinstance(name, int)), default=-1)
        if texts or largest >= MOST_NUMBERS:
            return texts
        return list(map(str, range(largest + 1)))

    @abstractmethod
    def find(self) -> list[Entry]:
        """The images of `self.split`, in the order of the dataset. An image with several entries
        gets the objects of all.

        It is called at every start, `read` only if an image, a label file or one of the files
        `split.paths` has changed. So a label file that is read here has to be one of these.
        """

    @abstractmethod
    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        """The labels of one image.

        Args:
            entry: one of those that `find` returned.
            height: of the image in pixels.
            width: of the image in pixels.

        Returns:
            None if there is no label file.

        Raises:
            InputError: "FILE: why": the label file cannot be used; the image is left out.
        """


class PerImageFormat(Format):
    """A label file for each image. A split is a folder of images, or a text file with one image per
    line.

    Attributes:
        suffix: of the label files.
    """

    suffix: ClassVar[str]

    @abstractmethod
    def label_path(self, image: str) -> str:
        """The path of the label file of an image, which need not exist."""

    @abstractmethod
    def listed_images(self, source: Path) -> Iterable[str | Path]:
        """The images that a text file lists."""

    def images(self, source: Path) -> Iterator[str]:
        """The images of one path of the split, in any order."""
        if self.files.is_folder(source):
            return self.files.images(source)
        return map(str, self.listed_images(source))

    def find(self) -> list[Entry]:
        images = set(chain.from_iterable(map(self.images, self.split.paths)))
        return [Entry(image, self.label_path(image)) for image in sorted(images)]


def find_tail(path: str, exists: Callable[[Path], object], *folders: Path) -> Path | None:
    """The file or folder of a path that was written for another place: `../train/images`,
    `/content/train/images` and `C:\\train\\images` are `train/images` below one of the folders.

    Args:
        path: its longest tail that exists counts; its last part only if it has no other.
        exists: whether there is such a file or folder.
        folders: where to look.
    """
    parts = [part for part in Path(path.replace("\\", "/")).parts if part not in ("..", "/")]
    for start in range(len(parts)):
        is_last = 0 < start == len(parts) - 1
        for folder in folders:
            place = folder.joinpath(*parts[start:])
            if not is_last and exists(place):
                return place
    return None


def number(value: object) -> float:
    """NaN if it is no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def corners(box: object) -> tuple[float, ...]:
    """x1, y1, x2, y2 of [x, y, width, height]; NO_BOX if it is no such list."""
    if not isinstance(box, list) or len(box) != 4:
        return NO_BOX
    x, y, width, height = map(number, box)
    return x, y, x + width, y + height


def image_size_of(height: object, width: object) -> tuple[int, int] | None:
    """The size that a label file gives; None if it gives none (left out, no numbers, 0 x 0)."""
    sides = (number(height), number(width))
    if all(0 < side < 2**31 for side in sides):
        return int(sides[0]), int(sides[1])
    return None


@contextmanager
def without_collector() -> Iterator[None]:
    """While this lasts, Python looks for no garbage, which takes long among many small objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
