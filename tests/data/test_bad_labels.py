"""Bad boxes are dropped and named, their image stays; what is dropped, in words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_datasets import (
    as_coco,
    as_voc,
    as_yolo,
    coco_with,
    counts,
    files_of,
    lay_out,
    load,
    voc_object,
    voc_xml,
)
from made_labels import labels_of, table_of

from boltbox.detector.data.datasets import DetectionDataset, Fault
from boltbox.detector.data.label_table import LabelSource
from boltbox.detector.system.errors import InputError

GOOD_FIRST = "0 0.5 0.5 0.5 0.5"
GOOD_LAST = "1 0.25 0.25 0.125 0.125"
COUNTS = "a box has 5, a polygon 7, 9, 11, ..."


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0", f"wrong column count (1; {COUNTS})"),
        ("0 .5 .5 .5", f"wrong column count (4; {COUNTS})"),
        ("0 .5 .5 .5 .5 .9", f"wrong column count (6; {COUNTS})"),
        ("0 .1 .1 .5 .1 .5 .5 .1", f"wrong column count (8; {COUNTS})"),
        ("cat .5 .5 .5 .5", "not a number"),
        ("0,.5,.5,.5,.5", "not a number"),
        ("0 nan .5 .5 .5", "non-finite value"),
        ("0 .5 .5 inf .5", "non-finite value"),
        ("0 .5 -.1 .5 .5", "negative value"),
        ("-1 .5 .5 .5 .5", "negative value"),
        ("0 1.001 .5 .5 .5", "coordinate above 1 (coordinates are fractions of the image)"),
        ("0 .1 .1 .5 .1 .5 12", "coordinate above 1 (coordinates are fractions of the image)"),
        ("0 .5 .5 0 .5", "zero width or height"),
        ("0 .5 .5 .5 0", "zero width or height"),
        ("0 .1 .1 .5 .1 .9 .1", "zero width or height"),
        ("0.5 .5 .5 .5 .5", "class 0.5 is not an integer"),
        ("1e30 .5 .5 .5 .5", "class 1e+30 is not an integer"),
        ("0 .50 .50 .50 .50", "duplicate of an earlier line"),
    ],
)
def test_bad_yolo_line(tmp_path: Path, line: str, problem: str) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/c.txt": f"{GOOD_FIRST}\n\n{line}\n{GOOD_LAST}\n"})
    dataset = load(tmp_path)
    assert dataset.faults == [Fault(str(tmp_path / "labels/train/c.txt"), "line 3", problem)]
    assert counts(dataset)[:2] == (3, 5)
    # of 64 x 64 pixels
    assert dataset.labels[2].boxes.tolist() == [[16, 16, 48, 48], [12, 12, 20, 20]]
    assert dataset.labels[2].classes.tolist() == [0, 1]


def test_several_bad_lines_in_several_files(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(
        tmp_path,
        {
            "labels/train/b.txt": "x\n0 2 2 2 2\n",
            "labels/train/c.txt": f"0\n{GOOD_FIRST}\n{GOOD_FIRST}\n",
        },
    )
    dataset = load(tmp_path)
    assert [(Path(f.file).name, f.where) for f in dataset.faults] == [
        ("b.png", ""),
        ("b.txt", "line 1"),
        ("b.txt", "line 2"),
        ("c.txt", "line 1"),
        ("c.txt", "line 3"),
    ]
    assert files_of(dataset) == ["a.png", "c.png"], "b.png lost all it had, and is no background"
    lost = Fault(
        str(tmp_path / "images/train/b.png"),
        "",
        "none of its objects can be used, first: line 1, not a number",
    )
    assert dataset.faults[0] == lost
    assert counts(dataset) == (2, 2, 0, 0)


def test_yolo_boxes_and_polygons_in_one_file(tmp_path: Path) -> None:
    """YOLOv5 would read the box line as a polygon of two points."""
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/a.txt": "0 0.5 0.5 0.5 0.5\n1 0.1 0.25 0.9 0.25 0.5 0.75\n"})
    labels = load(tmp_path).labels[0]  # of 60 x 40 pixels
    np.testing.assert_allclose(labels.boxes, [[15, 10, 45, 30], [6, 10, 54, 30]], atol=1e-4)
    assert labels.polygons[0] == []
    np.testing.assert_allclose(labels.polygons[1], [[[6, 10], [54, 10], [30, 30]]], atol=1e-4)


def test_yolo_box_may_leave_the_image(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/a.txt": "0 1 0.5 0.5 1"})
    np.testing.assert_allclose(load(tmp_path).labels[0].boxes, [[45, 0, 75, 40]], atol=1e-4)


@pytest.mark.parametrize(
    ("item", "where", "problem"),
    [
        (voc_object("cat", 5, 5, 5, 9), "object 2 (cat)", "zero or negative width or height"),
        (voc_object("cat", 5, 9, 8, 9), "object 2 (cat)", "zero or negative width or height"),
        (voc_object("cat", 9, 5, 5, 9), "object 2 (cat)", "zero or negative width or height"),
        (voc_object("cat", "", 5, 5, 9), "object 2 (cat)", "missing or non-finite coordinate"),
        (voc_object("cat", "left", 5, 5, 9), "object 2 (cat)", "missing or non-finite coordinate"),
        (voc_object("cat", "nan", 5, 5, 9), "object 2 (cat)", "missing or non-finite coordinate"),
        ("<object><name>cat</name></object>", "object 2 (cat)", "missing or non-finite coordinate"),
        (
            "<object><name>dog</name><bndbox/></object>",
            "object 2 (dog)",
            "missing or non-finite coordinate",
        ),
        ("<object/>", "object 2 ()", "missing or non-finite coordinate"),
    ],
)
def test_bad_voc_object(tmp_path: Path, item: str, where: str, problem: str) -> None:
    as_voc(tmp_path)
    lay_out(
        tmp_path,
        {
            "Annotations/a.xml": voc_xml(
                voc_object("cat", 1, 2, 11, 22), item, voc_object("dog", 0.5, 0, 9, 9)
            )
        },
    )
    dataset = load(tmp_path)
    assert dataset.faults == [Fault(str(tmp_path / "Annotations/a.xml"), where, problem)]
    assert len(dataset) == 3
    assert dataset.labels[0].boxes.tolist() == [[1, 2, 11, 22], [0.5, 0, 9, 9]]
    assert dataset.labels[0].classes.tolist() == [0, 1]


MISSING = "missing or non-finite coordinate"


@pytest.mark.parametrize(
    ("annotation", "where", "problem"),
    [
        ({"bbox": [5, 5, 0, 9]}, "annotation 102 (cat)", "zero or negative width or height"),
        (
            {"bbox": [5, 5, 9, -1], "category_id": 3},
            "annotation 102 (dog)",
            "zero or negative width or height",
        ),
        ({"bbox": []}, "annotation 102 (cat)", MISSING),
        ({"bbox": None}, "annotation 102 (cat)", MISSING),
        ({"bbox": [5, 5, 9, float("nan")]}, "annotation 102 (cat)", MISSING),
        ({"image_id": 99}, "annotation 102", "its image 99 is not listed, or more than once"),
        ({"bbox": [5, 5, 9]}, "annotation 102 (cat)", MISSING),
        ({"bbox": ["left", 5, 9, 9]}, "annotation 102 (cat)", MISSING),
        ({"bbox": [None, 5, 9, 9]}, "annotation 102 (cat)", MISSING),
        ({"bbox": [1, 1, 1e39, 9]}, "annotation 102 (cat)", MISSING),
        ({"bbox": [1, 1, 10**400, 9]}, "annotation 102 (cat)", MISSING),
        # in float32
        ({"bbox": [1e7, 1, 0.4, 9]}, "annotation 102 (cat)", "zero or negative width or height"),
        ({"bbox": [1e9, 1, 1, 9]}, "annotation 102 (cat)", "coordinate beyond 16777216 px"),
    ],
)
def test_bad_coco_annotation(
    tmp_path: Path, annotation: dict[str, Any] | int, where: str, problem: str
) -> None:
    content = coco_with([{}, {}, {"category_id": 3, "bbox": [0.5, 0, 8.5, 9]}])
    good = content["annotations"][1]
    content["annotations"][1] = good | annotation if isinstance(annotation, dict) else annotation
    as_coco(tmp_path, content)
    dataset = load(tmp_path)
    assert dataset.faults == [Fault(str(tmp_path / "train.json"), where, problem)]
    assert len(dataset) == 3
    assert dataset.labels[0].boxes.tolist() == [[10, 20, 40, 30], [0.5, 0, 9, 9]]
    assert dataset.labels[0].classes.tolist() == [0, 1]


@pytest.mark.parametrize("key", ["image_id", "category_id"])
def test_coco_annotation_without_a_key_names_the_file(tmp_path: Path, key: str) -> None:
    content = coco_with([{}])
    del content["annotations"][0][key]
    as_coco(tmp_path, content)
    try:
        where = str(load(tmp_path).faults[0])
    except InputError as e:
        where = str(e)
    assert "train.json" in where
    assert "annotation 101" in where


@pytest.mark.parametrize(
    "text", ["<annotation><object>", "", '<?xml version="1.0" encoding="gbk"?><annotation/>']
)
def test_broken_xml_drops_the_image(tmp_path: Path, text: str) -> None:
    as_voc(tmp_path)
    lay_out(tmp_path, {"Annotations/b.xml": text})
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "c.png"]
    (lost,) = dataset.faults
    assert lost.file == str(tmp_path / "Annotations/b.xml")
    assert lost.problem.startswith("not valid XML (")


def test_summary_in_words() -> None:
    faults = [Fault(f"{k}.txt", "line 1", "negative value") for k in range(3)]
    faults.append(Fault("x.png", "", "no such image file"))
    table = table_of([labels_of(np.ones((n, 4)), np.zeros(n), 9, 9) for n in (2, 0, 3, 0)])
    sources = [LabelSource(), *[LabelSource("a.txt")] * 3]
    dataset = DetectionDataset(list("abcd"), table, ["cat"], sources, faults)
    assert dataset.summary("val", limit=3) == [
        "val: 4 images, 5 boxes, 2 images without objects (1 without a label file), 3 boxes dropped, 1 images dropped",
        "  left out: x.png: no such image file",
        "  left out: 0.txt, line 1: negative value",
        "  left out: 1.txt, line 1: negative value",
        "  ... and 1 more, all in dropped.txt",
    ]
    assert len(dataset.summary("val", limit=4)) == 5
