"""The labels of a dataset in a few flat arrays.

A list of Labels would be copied, page by page, into each process that a loader forks: reading a
Python object writes to its reference count. Here a process writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from boltbox.detector.data.sample import Labels, Polygons


class LabelSource(NamedTuple):
    """Where the labels of one image are written.

    Attributes:
        file: label file, "" if there is none.
        places: what reports call its objects ("line 3", "object 2 (cat)").
        size: (height, width) of the image according to the label file, or None.
    """

    file: str = ""
    places: Sequence[str] = ()
    size: Sequence[int] | None = None


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
        """Boxes, classes and polygons of image i without crowd regions. The list of polygons is
        empty if the table has none."""
        if not len(self.points):
            first, last = self.starts[i : i + 2].tolist()
            counted = ~self.crowd[first:last]
            return self.boxes[first:last][counted], self.classes[first:last][counted], []
        labels = self[i]
        if labels.crowd.any():
            labels = labels.keep(~labels.crowd)
        return labels.boxes, labels.classes, labels.polygons

    def scaled(self, sizes: Sequence[tuple[int, int]]) -> LabelTable:
        """The same labels in images of other sizes (height, width); areas stay those of the
        files."""
        new_sizes = np.array(sizes, np.int64).reshape(-1, 2)
        gain = (new_sizes / self.sizes)[:, ::-1].astype(np.float32)  # (n, 2) of x, y
        of_objects = gain[self.image_of]
        of_parts = np.repeat(of_objects, np.diff(self.part_starts), 0)
        of_points = np.repeat(of_parts, np.diff(self.point_starts), 0)
        return replace(
            self,
            sizes=new_sizes,
            boxes=self.boxes * np.tile(of_objects, 2),
            points=self.points * of_points,
        )

    @property
    def image_of(self) -> np.ndarray:
        """(N,) the image that each object belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def starts(pieces: Sequence[Sized]) -> np.ndarray:
    """(n + 1,) int64: where n pieces start that lie one after the other, and where the last one
    ends."""
    lengths = list(map(len, pieces))
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
