"""Data sets as people have them: each tool's layout loads as it is, with the boxes that were put in."""

from collections.abc import Callable
from pathlib import Path

import label_layouts as layouts
import numpy as np
import pytest

from boltbox.detector.data.dataset_file import DatasetFile

TWO_SPLITS = [
    layouts.roboflow_yolo,
    layouts.roboflow_segmentation,
    layouts.roboflow_obb,
    layouts.roboflow_coco,
    layouts.coco,
    layouts.darknet,
    layouts.fiftyone_yolo,
    layouts.other_machine,
    layouts.hugging_face_folder,
]
ONE_SPLIT = [
    layouts.cvat_coco,
    layouts.label_studio_coco,
    layouts.fiftyone_coco,
    layouts.labelimg,
    layouts.label_studio_yolo,
    layouts.cvat_yolo,
    layouts.cvat_ultralytics,
    layouts.images_and_labels,
]
WITHOUT_NAMES = [layouts.images_and_labels, layouts.hugging_face_folder]
Layout = Callable[[Path], Path]


def boxes_of(file: DatasetFile, split: str) -> dict[str, list[list[float]]]:
    """Class and xyxy pixels of the objects of each picture."""
    dataset = file.open(split)
    found = {}
    for i, name in enumerate(dataset.files):
        boxes, classes, _ = dataset.labels.counted(i)
        rows = np.column_stack((classes, boxes)).tolist()
        found[Path(name).stem] = sorted(rows)
    return found


def check(file: DatasetFile, two_splits: bool, names: list[str]) -> None:
    file.prepare()
    assert file.names == names
    train, val = boxes_of(file, "train"), boxes_of(file, "val")
    if two_splits:
        assert (sorted(train), sorted(val)) == (layouts.TRAIN, layouts.VAL)
    assert sorted([*train, *val]) == sorted(layouts.PICTURES)
    for name, rows in (train | val).items():
        expected = sorted(map(list, layouts.PICTURES[name][2]))
        np.testing.assert_allclose(np.array(rows), np.array(expected), atol=1e-3, err_msg=name)


@pytest.mark.parametrize("layout", TWO_SPLITS + ONE_SPLIT, ids=lambda f: f.__name__)
def test_it_loads(layout: Layout, tmp_path: Path) -> None:
    source = layout(tmp_path / "pets")
    names = ["0", "1"] if layout in WITHOUT_NAMES else layouts.NAMES
    check(DatasetFile.read(str(source), needs_val=True), layout in TWO_SPLITS, names)
