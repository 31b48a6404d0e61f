"""The labels of a dataset in a few flat arrays.

A list of Labels would be copied, page by page, into each process that a loader forks: reading a
Python object writes to its reference count. Here a process writes nothing, and all processes of a
machine may share the memory of a mapped file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import compress, pairwise

import numpy as np

from boltbox.detector.data.sample import Labels, Polygons


@dataclass(frozen=True, eq=False)
class Texts(Sequence[str]):
    """Texts in arrays. An item is decoded when it is asked for; equal texts are kept once.

    Attributes:
        numbers: (n,) int32, the number of each item's text.
        starts: (t + 1,) int64, where each text starts in `content`, and where the last one ends.
        content: uint8, the texts one after the other.
    """

    numbers: np.ndarray
    starts: np.ndarray
    content: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Of plain texts."""
        number_of: dict[str, int] = {}
        numbers = [number_of.setdefault(text, len(number_of)) for text in texts]
        encoded = list(map(os.fsencode, number_of))
        content = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
        return cls(np.array(numbers, np.int32), starts(encoded), content)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> np.ndarray:
        """(n,) bytes of each text."""
        return np.diff(self.starts)[self.numbers]

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        number = self.numbers[i]
        first, last = self.starts[number : number + 2].tolist()
        return os.fsdecode(self.content[first:last].tobytes())


@dataclass(frozen=True, eq=False)
class LabelTable:
    """The labels of n images with N objects of P polygon parts and Q points; item i is the Labels
    of image i, which are views.

    Attributes:
        sizes: (n, 2) int64 height, width.
        starts: (n + 1,) int64 first object of each image.
        boxes: (N, 4) float32, see Labels.
        classes: (N,) int64.
        crowd: (N,) bool.
        area: (N,) float32.
        part_starts: (N + 1,) int64 first part of each object.
        point_starts: (P + 1,) int64 first point of each part.
        points: (Q, 2) float32 xy.
    """

    sizes: np.ndarray
    starts: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    crowd: np.ndarray
    area: np.ndarray
    part_starts: np.ndarray
    point_starts: np.ndarray
    points: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Labels]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, i: int) -> Labels:
        first, last = self.starts[i : i + 2].tolist()
        height, width = self.sizes[i].tolist()
        polygons = []
        for start, end in pairwise(self.part_starts[first : last + 1].tolist()):
            edges = pairwise(self.point_starts[start : end + 1].tolist())
            polygons.append([self.points[a:b] for a, b in edges])
        return Labels(
            self.boxes[first:last],
            self.classes[first:last],
            polygons,
            self.crowd[first:last],
            self.area[first:last],
            height,
            width,
        )

    def counted(self, i: int) -> tuple[np.ndarray, np.ndarray, Polygons]:
        """Boxes, classes and polygons of image i, without crowd regions. The list of polygons is
        empty if the table has none."""
        first, last = self.starts[i : i + 2].tolist()
        boxes = self.boxes[first:last]
        classes = self.classes[first:last]
        polygons: Polygons = self[i].polygons if len(self.points) else []
        crowd = self.crowd[first:last]
        if crowd.any():
            boxes = boxes[~crowd]
            classes = classes[~crowd]
            polygons = list(compress(polygons, ~crowd))
        return boxes, classes, polygons

    @property
    def image_of(self) -> np.ndarray:
        """(N,) the image that each object belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def object_sizes(self, image_size: int, tile_size: int | None = None) -> np.ndarray:
        """Sizes of all objects, crowd regions too.

        Args:
            image_size: longer side of the network's input.
            tile_size: sides in pixels of the windows of larger images; None: images are whole.

        Returns:
            (N, 2) width and height in pixels of the network's input.
        """
        longer = self.sizes.max(1, initial=1)
        if tile_size:
            longer = longer.clip(max=tile_size)
        gain = image_size / longer[self.image_of]
        return (self.boxes[:, 2:] - self.boxes[:, :2]) * gain[:, None].astype(np.float32)

    def part(self, start: int, stop: int) -> LabelTable:
        """The images from `start` on, up to `stop`, without polygons."""
        edges = self.starts[start : stop + 1]
        objects = slice(edges[0], edges[-1])
        return replace(
            self,
            sizes=self.sizes[start:stop],
            starts=edges - edges[0],
            boxes=self.boxes[objects],
            classes=self.classes[objects],
            crowd=self.crowd[objects],
            area=self.area[objects],
            points=self.points[:0],
        )

    @classmethod
    def joined(cls, tables: Sequence[LabelTable]) -> LabelTable:
        """The images of several tables, one after the other."""
        columns = {}
        for name in cls.__dataclass_fields__:
            arrays = [getattr(table, name) for table in tables]
            if name.endswith("starts"):
                lengths = np.concatenate(list(map(np.diff, arrays)))
                columns[name] = starts_of(lengths)
            else:
                columns[name] = np.concatenate(arrays)
        return cls(**columns)


def starts(pieces: Sequence[Sized]) -> np.ndarray:
    """(n + 1,) int64: where n pieces start that lie one after the other, and where the last one
    ends."""
    return starts_of(list(map(len, pieces)))


def starts_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """As `starts`, of pieces of these lengths."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def first_of_groups(groups: np.ndarray) -> np.ndarray:
    """Where a group begins: the places of numbers, none negative, that differ from the one
    before."""
    return np.flatnonzero(np.diff(groups, prepend=-1))


def rank_in_group(groups: np.ndarray) -> np.ndarray:
    """(n,) how many equal numbers come before each."""
    order = np.argsort(groups, kind="stable")
    first = first_of_groups(groups[order])
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - first.repeat(np.diff(first, append=len(groups)))
    return rank
