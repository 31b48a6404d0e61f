"""Bad labels: an object is dropped and named, its image stays; an image that lost all is left out; a
dataset that cannot be used is an error that names the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_datasets import (
    PAIR,
    SCENES,
    TRAIN,
    as_coco,
    as_voc,
    as_yolo,
    coco_with,
    counts,
    files_of,
    lay_out,
    load,
    lost_images,
    picture,
    save,
    voc_object,
    voc_xml,
)

import cli
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import Fault
from boltbox.detector.system.errors import InputError

MISSING = "missing or non-finite coordinate"
EMPTY = "zero or negative width or height"
Maker = Callable[[Path], None]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0", "wrong column count (1;"),
        ("0 .5 .5 .5 .5 .9", "wrong column count (6;"),
        ("0 .1 .1 .5 .1 .5 .5 .1", "wrong column count (8;"),
        ("cat .5 .5 .5 .5", "not a number"),
        ("0,.5,.5,.5,.5", "not a number"),
        ("0 nan .5 .5 .5", "non-finite value"),
        ("0 .5 -.1 .5 .5", "negative value"),
        ("-1 .5 .5 .5 .5", "negative value"),
        ("0 1.001 .5 .5 .5", "coordinate above 1"),
        ("0 .1 .1 .5 .1 .5 12", "coordinate above 1"),
        ("0 .5 .5 0 .5", "zero width or height"),
        ("0 .1 .1 .5 .1 .9 .1", "zero width or height"),
        ("0.5 .5 .5 .5 .5", "class 0.5 is not an integer"),
        ("0 .50 .50 .50 .50", "duplicate of an earlier line"),
    ],
)
def test_yolo_line(tmp_path: Path, line: str, problem: str) -> None:
    as_yolo(tmp_path)
    lines = f"0 .5 .5 .5 .5\n\n{line}\n1 1 .25 .5 .125\n1 .1 .25 .9 .25 .5 .75\n"
    lay_out(tmp_path, {"labels/train/c.txt": lines})
    dataset = load(tmp_path)
    (fault,) = dataset.faults
    assert (fault.file, fault.where) == (str(tmp_path / "labels/train/c.txt"), "line 3")
    assert fault.problem.startswith(problem)
    labels = dataset.labels[2]  # of 64 x 64 pixels; a box may leave the image
    expected = [[16, 16, 48, 48], [48, 12, 80, 20], [6.4, 16, 57.6, 48]]
    np.testing.assert_allclose(labels.boxes, expected, atol=1e-4)
    assert labels.classes.tolist() == [0, 1, 1]
    assert labels.polygons[:2] == [[], []]
    np.testing.assert_allclose(labels.polygons[2], [[[6.4, 16], [57.6, 16], [32, 48]]], atol=1e-4)


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (voc_object("cat", 5, 5, 5, 9), EMPTY),
        (voc_object("cat", 9, 5, 5, 9), EMPTY),
        (voc_object("cat", "left", 5, 5, 9), MISSING),
        (voc_object("cat", "nan", 5, 5, 9), MISSING),
        ("<object><name>cat</name></object>", MISSING),
    ],
)
def test_voc_object(tmp_path: Path, item: str, problem: str) -> None:
    as_voc(tmp_path)
    good = voc_object("dog", 0.5, 0, 9, 9)
    lay_out(tmp_path, {"Annotations/a.xml": voc_xml(voc_object("cat"), item, good)})
    dataset = load(tmp_path)
    place = str(tmp_path / "Annotations/a.xml")
    assert dataset.faults == [Fault(place, "object 2 (cat)", problem)]
    assert dataset.labels[0].boxes.tolist() == [[1, 2, 11, 22], [0.5, 0, 9, 9]]
    assert dataset.labels[0].classes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"bbox": [5, 5, 9, -1]}, EMPTY),
        ({"bbox": None}, MISSING),
        ({"bbox": [5, 5, 9]}, MISSING),
        ({"bbox": [None, 5, 9, 9]}, MISSING),
        ({"bbox": [1, 1, 10**400, 9]}, MISSING),
        ({"bbox": [1e7, 1, 0.4, 9]}, EMPTY),  # in float32
        ({"bbox": [1e9, 1, 1, 9]}, "coordinate beyond 16777216 px"),
        ({"image_id": 99}, "its image 99 is not listed, or more than once"),
        ({"image_id": None}, "its image None is not listed, or more than once"),
    ],
)
def test_coco_annotation(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    as_coco(tmp_path, coco_with([{}, change, {"category_id": 3, "bbox": [0.5, 0, 8.5, 9]}]))
    dataset = load(tmp_path)
    where = "annotation 102" if "image_id" in change else "annotation 102 (cat)"
    assert dataset.faults == [Fault(str(tmp_path / "train.json"), where, problem)]
    assert dataset.labels[0].boxes.tolist() == [[10, 20, 40, 30], [0.5, 0, 9, 9]]
    assert dataset.labels[0].classes.tolist() == [0, 1]


def bad_yolo(root: Path) -> None:
    as_yolo(root)
    lay_out(root, {"labels/train/b.txt": "0 1.5 .5 .5 .5\n0 .5 .5 .5\n"})


def bad_voc(root: Path) -> None:
    as_voc(root)
    item = voc_object("cat", 5, 5, 5, 9)
    lay_out(root, {"Annotations/b.xml": voc_xml(item, item)})


def bad_coco(root: Path) -> None:
    lost = [{"image_id": 10, "bbox": [1, 2, 0, 4]}, {"image_id": 10, "bbox": None}]
    as_coco(root, coco_with([{}, *lost]))


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (bad_yolo, "line 1, coordinate above 1 (coordinates are fractions of the image)"),
        (bad_voc, f"object 1 (cat), {EMPTY}"),
        (bad_coco, f"annotation 102 (cat), {EMPTY}"),
    ],
)
def test_an_image_that_lost_all(tmp_path: Path, make: Maker, first: str) -> None:
    """b is left out and named, also from the cache, and is not in a repaired copy; c, which has
    none, stays."""
    root = tmp_path / "data"
    make(root)
    for _ in range(2):
        dataset = load(root)
        assert files_of(dataset) == ["a.png", "c.png"]
        image = str(next(root.rglob("b.png")))
        problem = f"none of its objects can be used, first: {first}"
        assert lost_images(dataset) == [Fault(image, "", problem)]
        assert (counts(dataset)[2], len(dataset.faults)) == (1, 3)
    line = ["doctor", "--data.dataset", str(root), "--data.image_size", "64"]
    with pytest.raises(SystemExit) as leaving:
        cli.main([*line, "--run", str(tmp_path / "run"), "--fix", str(tmp_path / "copy")])
    assert leaving.value.code == 1
    assert files_of(load(tmp_path / "copy")) == ["a.png", "c.png"]
    assert "b.png" in (tmp_path / "copy/repairs.txt").read_text()


@pytest.mark.parametrize("text", ["<annotation><object>", ""])
def test_broken_xml_drops_the_image(tmp_path: Path, text: str) -> None:
    as_voc(tmp_path)
    lay_out(tmp_path, {"Annotations/b.xml": text})
    (lost,) = load(tmp_path).faults
    assert (lost.file, lost.where) == (str(tmp_path / "Annotations/b.xml"), "")


def test_coco_annotations_that_may_be_of_two_images(tmp_path: Path) -> None:
    content = coco_with([{"image_id": 30}, {"image_id": 10}])
    for image in content["images"]:
        image["id"] = min(image["id"], 20) if image["id"] < 30 else 30
    content["images"][1]["id"] = content["images"][0]["id"]
    as_coco(tmp_path, content)
    assert len(files_of(load(tmp_path))) == 1, "nobody knows whose the box is"


LIST = "train: l.txt\n"
CLASSES = '"categories": [{"id": 1, "name": "cat"}]'


@pytest.mark.parametrize(
    ("base", "files", "words"),
    [
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: tsv"}, ["data.yaml", "tsv"]),
        (as_yolo, {"data.yaml": TRAIN, "labels/train/a.txt": "", "labels/train/b.txt": ""}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": TRAIN + "names: [cat, dog, cat]"}, ["data.yaml", "`names`", "'cat'"]),
        (as_yolo, {"data.yaml": TRAIN + "names: {0: cat, 2: dog}"}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": TRAIN + "names: cat"}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": TRAIN + "names: [yes, no]"}, ["data.yaml", "`names`", "quotes"]),
        (as_yolo, {"data.yaml": TRAIN + "nc: 80\n" + PAIR}, ["data.yaml", "`nc`", "80"]),
        (as_yolo, {"data.yaml": TRAIN + "nc: 1000000"}, ["data.yaml", "`nc`"]),
        (as_yolo, {"data.yaml": PAIR + "train: []"}, ["data.yaml", "train"]),
        (as_yolo, {"data.yaml": "val: images/train\n" + PAIR}, ["data.yaml", "`train`"]),
        (as_yolo, {"data.yaml": "train: images/trian\n" + PAIR}, ["data.yaml", "images/trian"]),
        (as_yolo, {"data.yaml": f"train: [images/train, gone]\n{PAIR}"}, ["data.yaml", "gone"]),
        (as_yolo, {"data.yaml": "- images/train"}, ["data.yaml"]),
        (as_yolo, {"data.yaml": "names: [cat"}, ["data.yaml", "line 1"]),
        (as_yolo, {"none/": "", "data.yaml": "train: none\n" + PAIR}, ["data.yaml", "none"]),
        (as_yolo, {"l.txt": "./gone.png", "data.yaml": LIST + PAIR}, ["data.yaml", "gone.png"]),
        (as_yolo, {"l.txt": "\n", "data.yaml": LIST + PAIR}, ["data.yaml", "l.txt"]),
        (as_yolo, {"labels/train/c.txt": "2 .5 .5 .1 .1"}, ["labels/train/c.txt", "line 1", "2"]),
        (as_yolo, {f"labels/train/{k}.txt": "0 .5 .5 .2 0\n" for k in SCENES}, ["data.yaml", "a.png", "line 1"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: coco"}, ["images/train"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: voc"}, ["data.yaml", "voc"]),
        (as_yolo, {"data.yaml": "train: images/train/a.png\n" + PAIR}, ["images/train/a.png"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "split: 2"}, ["data.yaml", "split"]),
        (as_yolo, {"data.yaml": f"{TRAIN}val: images/train\n{PAIR}split: 0.2"}, ["data.yaml", "split", "val"]),
        (as_voc, {"ImageSets/Main/train.txt": ""}, ["`names`"]),
        (as_voc, {"data.yaml": "train: ImageSets/Main/train.txt\nnames: [cat]"}, ["b.xml", "object 1", "'dog'"]),
        (as_coco, {"data.yaml": "train: train.json\nimages: photos\nnames: [cat]"}, ["train.json", "annotation 2", "'dog'"]),
        (as_coco, {"data.yaml": "train: gone.json"}, ["gone.json"]),
        (as_coco, {"data.yaml": "train: train.csv", "train.csv": "filename\na.png"}, ["train.csv", "xmin"]),
        (as_coco, {"data.yaml": "train: x.jsonl", "x.jsonl": "{}"}, ["x.jsonl", "line 1", "file_name"]),
        *((as_coco, {"train.json": text}, ["train.json"]) for text in (
            "{", "[]", '{"images": []}', '{"images": {}, "categories": []}',
            f'{{"images": [{{"id": 1}}], {CLASSES}}}', f'{{"images": [{{"id": true, "file_name": "a"}}], {CLASSES}}}',
            '{"images": [], "categories": [{"id": 1}]}', f'{{"images": [], "annotations": [{{"image_id": []}}], {CLASSES}}}',
        )),
    ],
    ids=lambda x: x.__name__ if callable(x) else x[-1] if isinstance(x, list) else "",
)  # fmt: skip
def test_errors(tmp_path: Path, base: Maker, files: dict[str, str], words: list[str]) -> None:
    base(tmp_path)
    lay_out(tmp_path, files)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("files", "source", "words"),
    [
        ({}, "gone.yaml", ["gone.yaml"]),
        ({"train.json": "{}"}, "train.json", ["train.json", "folder"]),
        ({"a.xml": "<annotations/>"}, "a.xml", ["a.xml", "convert"]),
        ({"ImageSets/Main/train.txt": "a"}, ".", ["data.yaml", "names", "convert"]),
        ({"a.png": "", "b.png": ""}, ".", ["2 images", "docs/data.md"]),
        ({"data.yaml": f"{TRAIN}{PAIR}format: my.Rows"}, "data.yaml", ["data.yaml", "--data.format"]),
    ],
)  # fmt: skip
def test_what_is_no_dataset(
    files: dict[str, str], source: str, words: list[str], tmp_path: Path
) -> None:
    lay_out(tmp_path, files)
    with pytest.raises(InputError) as caught:
        DatasetFile.read(str(tmp_path / source))
    assert [word for word in words if word not in str(caught.value)] == []


def test_exit_status(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_yolo(here / "data")
    for stem in SCENES:
        lay_out(here, {f"data/labels/train/{stem}.txt": "9 .5 .5 .2 .2\n"})
    with pytest.raises(SystemExit) as leaving:
        cli.main(["fit", "--data.dataset", "data", "--data.split", "0.4", "--run", "run"])
    assert leaving.value.code == 2
    assert "labels/train/" in capsys.readouterr().err


def test_identical_images_with_other_boxes(here: Path) -> None:
    """In another order they are the same; of another class they are a fault."""
    pair = ["0 .5 .5 .2 .2\n", "0 .2 .2 .1 .1\n"]
    lines = {"a": "".join(pair), "b": "".join(pair[::-1]), "c": pair[0] + "1" + pair[1][1:]}
    for stem, text in lines.items():
        save(here / f"data/images/{stem}.png", picture(40, 60))
        lay_out(here, {f"data/labels/{stem}.txt": text})
    lay_out(here, {"data/data.yaml": "train: images\n" + PAIR})
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--data.dataset", "data", "--run", "run"])
    kinds = {}
    for finding in json.loads((here / "run/doctor.json").read_text())["findings"]:
        kinds[finding["kind"]] = (finding["severity"], Path(finding["file"]).name)
    assert kinds["different_labels"] == ("fault", "c.png")
    assert kinds["duplicate_image"] == ("warning", "b.png")
