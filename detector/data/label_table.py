"""The labels of a whole data set in a few flat arrays.

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
    """Where the labels of one image are written. file: its label file, "" if there is none ·
    places: what each of its objects is called in reports ("line 3", "object 2 (cat)") · size:
    (height, width) that the label file gives the image, or None."""

    file: str = ""
    places: Sequence[str] = ()
    size: Sequence[int] | None = None


@dataclass(frozen=True, eq=False)
class LabelTable:
    """n images, N objects, P polygon parts, Q points; item i is the Labels of image i, made on the
    spot from views.

    sizes (n, 2) int64 height, width · starts (n + 1,) int64: first object of each image · boxes (N,
    4) float32 · classes (N,) int64 · crowd (N,) bool · area (N,) float32: see Labels · part_starts
    (N + 1,) int64: first part of each object · point_starts (P + 1,) int64: first point of each
    part · points (Q, 2) float32 xy.
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
        a, b = self.starts[i : i + 2].tolist()
        own, (height, width) = slice(a, b), self.sizes[i].tolist()
        polygons = [
            [self.points[slice(*self.point_starts[p : p + 2])] for p in range(first, last)]
            for first, last in pairwise(self.part_starts[a : b + 1].tolist())
        ]
        columns = self.boxes[own], self.classes[own], polygons, self.crowd[own], self.area[own]
        return Labels(*columns, height, width)

    def counted(self, i: int) -> tuple[np.ndarray, np.ndarray, Polygons]:
        """Boxes, classes and polygons of image i but for crowd regions. No polygons at all are an
        empty list."""
        if not len(self.points):
            own = slice(*self.starts[i : i + 2].tolist())
            counted = ~self.crowd[own]
            return self.boxes[own][counted], self.classes[own][counted], []
        labels = self[i]
        if labels.crowd.any():
            labels = labels.keep(~labels.crowd)
        return labels.boxes, labels.classes, labels.polygons

    def scaled(self, sizes: Sequence[tuple[int, int]]) -> LabelTable:
        """The same in images of other sizes (height, width); areas stay those of the files."""
        sizes_ = np.array(sizes, np.int64).reshape(-1, 2)
        gain = (sizes_ / self.sizes)[:, ::-1].astype(np.float32)  # (n, 2) of x, y
        of_objects = gain[self.image_of]
        of_parts = np.repeat(of_objects, np.diff(self.part_starts), 0)
        of_points = np.repeat(of_parts, np.diff(self.point_starts), 0)
        return replace(
            self,
            sizes=sizes_,
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
    return np.concatenate(([0], np.cumsum([*map(len, pieces)], dtype=np.int64)))
