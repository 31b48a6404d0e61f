"""Labels of an image, and tables of them, from a few numbers."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

from boltbox.detector.data.label_table import LabelTable, starts
from boltbox.detector.data.sample import Labels, Polygons


def labels_of(
    boxes: ArrayLike,
    classes: ArrayLike,
    height: int,
    width: int,
    polygons: Polygons | None = None,
    crowd: ArrayLike | None = None,
    area: ArrayLike | None = None,
) -> Labels:
    """With dtypes set and the optional columns filled in: no polygons, no crowd, area = box
    area."""
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    n = len(boxes)
    return Labels(
        boxes,
        np.asarray(classes, np.int64).reshape(n),
        polygons if polygons is not None else [[] for _ in range(n)],
        np.zeros(n, bool) if crowd is None else np.asarray(crowd, bool).reshape(n),
        (boxes[:, 2:] - boxes[:, :2]).prod(1)
        if area is None
        else np.asarray(area, np.float32).reshape(n),
        height,
        width,
    )


def table_of(labels: Sequence[Labels]) -> LabelTable:
    objects = list(chain.from_iterable(x.polygons for x in labels))
    parts = [np.zeros((0, 2)), *chain.from_iterable(objects)]
    columns = [
        np.concatenate([getattr(x, name) for x in (labels_of([], [], 0, 0), *labels)])
        for name in ("boxes", "classes", "crowd", "area")
    ]
    return LabelTable(
        np.array([(x.height, x.width) for x in labels], np.int64).reshape(-1, 2),
        starts([x.boxes for x in labels]),
        *columns,
        starts(objects),
        starts(parts[1:]),
        np.concatenate(parts, dtype=np.float32),
    )
