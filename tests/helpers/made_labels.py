"""Labels of an image, and tables of them, from a few numbers."""

from itertools import chain

import numpy as np

from boltbox.detector.data.label_table import LabelTable, starts
from boltbox.detector.data.sample import Labels


def labels_of(
    boxes,
    classes,
    height,
    width,
    polygons=None,
    crowd=None,
    area=None,
):
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


def table_of(labels):
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
