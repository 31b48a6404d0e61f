"""The doctor's figures against counts made the slow way, and its findings at their limits."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import (
    as_coco,
    as_voc,
    coco_with,
    lay_out,
    load,
    picture,
    save,
    voc_object,
    voc_xml,
)
from made_labels import labels_of, table_of

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.statistics import statistics
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_table import LabelSource

Box = tuple[int, float, float, float, float]  # class, x1, y1, x2, y2


def dataset_of(*images: list[Box], names: str = "ab", side: int = 640) -> DetectionDataset:
    """Square images that are only spoken of, with a label file each."""
    labels = [
        labels_of(np.array([o[1:] for o in x]), np.array([o[0] for o in x]), side, side)
        for x in images
    ]
    files = [f"/nowhere/{i}.jpg" for i in range(len(images))]
    sources = [
        LabelSource(f"/nowhere/{i}.txt", [f"line {k + 1}" for k in range(len(image))])
        for i, image in enumerate(images)
    ]
    return DetectionDataset(files, table_of(labels), list(names), sources)


def kinds(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.severity, f.kind, f.split) for f in findings]


def box(c: int, width: float, height: float) -> Box:
    return c, 10, 10, 10 + width, 10 + height


boxes = st.tuples(st.integers(0, 1), *[st.floats(0.5, 600, width=32)] * 2).map(lambda t: box(*t))


@given(st.lists(st.lists(boxes, max_size=9), min_size=1, max_size=5))
@settings(max_examples=60)
def test_figures_are_those_counted_by_hand(images: list[list[Box]]) -> None:
    dataset = dataset_of(*images)
    figures, _ = statistics({"train": dataset}, 320)
    told = figures["splits"]["train"]
    assert told["images"] == len(images)
    assert told["boxes"] == sum(map(len, images))
    assert told["background"] == sum(not image for image in images)
    assert told["class_counts"] == [
        sum(o[0] == c for image in images for o in image) for c in (0, 1)
    ]
    assert json.loads(json.dumps(figures)) == figures, "plain types"


def test_object_of_a_voc_file(tmp_path: Path) -> None:
    as_voc(tmp_path)
    lay_out(
        tmp_path,
        {
            "Annotations/a.xml": voc_xml(
                voc_object("cat", 9, 9, 9, 9), voc_object("dog"), voc_object("cat", 3, 3, 4, 30)
            )
        },
    )
    _, findings = statistics({"train": load(tmp_path)}, 60)
    (found,) = [f for f in findings if f.kind == "tiny_box"]
    assert (found.file, found.where) == (str(tmp_path / "Annotations/a.xml"), "object 3 (cat)")


def test_object_of_a_coco_image(tmp_path: Path) -> None:
    as_coco(
        tmp_path,
        coco_with(
            [
                {},
                {"bbox": [10, 20, 0, 0]},
                {"bbox": [10, 20, 1, 10]},
                {"bbox": [1, 1, 1, 1], "iscrowd": 1},
            ]
        ),
    )
    figures, findings = statistics({"train": load(tmp_path)}, 60)
    (found,) = [f for f in findings if f.kind == "tiny_box"]
    assert (found.file, found.where) == (str(tmp_path / "train.json"), "annotation 103 (cat)")
    assert figures["splits"]["train"]["boxes"] == 2


@pytest.mark.parametrize(
    ("common", "rare", "severity"),
    [
        (9, 1, None),
        (19, 2, None),
        (10, 1, "note"),
        (99, 1, "note"),
        (100, 1, "warning"),
        (7, 0, None),
    ],
)
def test_imbalance(common: int, rare: int, severity: str | None) -> None:
    dataset = dataset_of([box(0, 20, 20)] * common, [box(1, 20, 20)] * rare)
    _, findings = statistics({"train": dataset}, 640)
    assert [f.severity for f in findings if f.kind == "class_imbalance"] == (
        [severity] if severity else []
    )


def test_classes_without_examples() -> None:
    train, val = (dataset_of([box(c, 20, 20)], names="abc") for c in (0, 1))
    val.labels[0].classes[:] = 2
    _, findings = statistics({"train": train, "val": val}, 640)
    missing = [f for f in findings if f.kind == "class_without_examples"]
    assert [(f.severity, f.split, f.problem) for f in missing] == [
        ("warning", "train", "2 of 3 classes without an example in train: b, c"),
        ("warning", "val", "2 of 3 classes without an example in val: a, b"),
    ]
    _, findings = statistics({"train": dataset_of([box(0, 20, 20)])}, 640)
    assert findings[0].problem == "1 of 2 classes without an example in train: b"


@pytest.mark.parametrize(
    ("side", "size", "enough"),
    [(8.0, 640, None), (5.0, 640, 1024), (16.0, 320, None), (15.0, 320, 352)],
)
def test_most_objects_too_small(side: float, size: int, enough: int | None) -> None:
    """Of a 640 px image: 5 px reach 8 at 640 * 8 / 5 = 1024; 15 px are 7.5 at 320 and 8 at 341.3,
    rounded up to 352."""
    dataset = dataset_of([box(0, side, side)] * 2 + [box(1, 100, 100)])
    _, findings = statistics({"train": dataset}, size)
    small = [f for f in findings if f.kind == "small_objects"]
    if enough is None:
        assert small == []
    else:
        assert f"at --data.image_size {enough} the median object" in small[0].problem
        assert statistics({"train": dataset}, enough)[1] == [], "the advice is good"


@pytest.mark.parametrize(
    ("width", "height", "found"),
    [
        (2.5, 60, []),
        (500, 2, [("warning", "tiny_box", "train")]),
        (2.1, 2.1, []),
        (2.0, 2.1, [("warning", "tiny_box", "train")]),
    ],
)
def test_odd_boxes(width: float, height: float, found: list[tuple[str, str, str]]) -> None:
    dataset = dataset_of([box(0, width, height), *[box(0, 30, 30)] * 3], names="a")
    assert kinds(statistics({"train": dataset}, 640)[1]) == found


def test_only_the_first_split_is_trained_on() -> None:
    even = dataset_of([box(0, 20, 20), box(1, 20, 20)])
    uneven = dataset_of([box(0, 3, 3)] * 30 + [box(1, 3, 3)])
    assert statistics({"train": even, "val": uneven}, 640)[1] == []
    assert {f.kind for f in statistics({"val": uneven}, 640)[1]} == {
        "class_imbalance",
        "small_objects",
    }


def test_nothing_to_count(tmp_path: Path) -> None:
    """No split, no object, a class number beyond the names."""
    figures, findings = statistics({}, 640)
    assert (figures["splits"], findings) == ({}, [])
    figures, findings = statistics({"train": dataset_of([], [])}, 640)
    assert figures["splits"]["train"]["background"] == 2
    assert kinds(findings) == [("warning", "class_without_examples", "train")]
    figures, _ = statistics({"train": dataset_of([box(7, 20, 20), box(1, 20, 20)])}, 640)
    assert figures["splits"]["train"]["class_counts"] == [0, 1]
    save(tmp_path / "images/train/x.png", picture(40, 40))
    lay_out(
        tmp_path,
        {"labels/train/x.txt": "0 .5 .5 .5 .5", "data.yaml": "train: images/train\nnames: [a]\n"},
    )
    assert statistics({"train": load(tmp_path)}, 640)[1] == []
