"""Labels of an image, and tables of them, from a few numbers."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
from made_runs import column

from boltbox.detector.commands.doctor.images import examine_images
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


def examine(**splits):
    """What the doctor finds in image files without labels."""
    datasets = {}
    for split, files in splits.items():
        labels = [labels_of([], [], 40, 60)] * len(files)
        datasets[split] = SimpleNamespace(files=list(map(str, files)), labels=labels)
    return list(examine_images(datasets))


def table_of(labels):
    objects = list(chain(*column(labels, "polygons")))
    parts = [np.zeros((0, 2)), *chain.from_iterable(objects)]
    columns = []
    for name in ("boxes", "classes", "crowd", "area"):
        columns.append(np.concatenate(column([labels_of([], [], 0, 0), *labels], name)))
    sizes = np.array([column(labels, "height"), column(labels, "width")], np.int64)
    return LabelTable(
        np.ascontiguousarray(sizes.T),
        starts(column(labels, "boxes")),
        *columns,
        starts(objects),
        starts(parts[1:]),
        np.concatenate(parts, dtype=np.float32),
    )
