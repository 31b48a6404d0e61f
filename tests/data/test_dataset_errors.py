"""Errors in data sets: each names the file and the thing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_datasets import PAIR, SCENES, TRAIN, as_coco, as_voc, as_yolo, lay_out, load

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError


@pytest.mark.parametrize(
    ("base", "files", "words"),
    [
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: tsv"}, ["data.yaml", "format 'tsv'", "yolo, voc, coco"]),
        (as_yolo, {"data.yaml": TRAIN, "labels/train/a.txt": "", "labels/train/b.txt": ""}, ["data.yaml", "`names` is missing"]),
        (as_yolo, {"data.yaml": TRAIN + "names: [cat, dog, cat]"}, ["data.yaml", "`names`", "'cat' twice"]),
        (as_yolo, {"data.yaml": TRAIN + "names: {0: cat, 2: dog}"}, ["data.yaml", "`names`", "keys 0, 1"]),
        (as_yolo, {"data.yaml": TRAIN + "names: {a: cat, b: dog}"}, ["data.yaml", "`names`", "keys 0, 1"]),
        (as_yolo, {"data.yaml": PAIR}, ["data.yaml", "train, val, test"]),
        (as_yolo, {"data.yaml": PAIR + "train: []"}, ["data.yaml", "train, val, test"]),
        (as_yolo, {"data.yaml": "val: images/train\n" + PAIR}, ["data.yaml", "`train` is missing", "it has val"]),
        (as_yolo, {"data.yaml": "train: images/trian\n" + PAIR}, ["data.yaml", "train refers to", "images/trian"]),
        (as_yolo, {"data.yaml": f"train: [images/train, gone]\n{PAIR}"}, ["data.yaml", "train refers to", "gone"]),
        (as_yolo, {"data.yaml": "- images/train"}, ["data.yaml", "expected a map"]),
        (as_yolo, {"data.yaml": ""}, ["data.yaml", "expected a map"]),
        (as_yolo, {"data.yaml": "names: [cat"}, ["data.yaml", "not valid YAML", "line 1"]),
        (as_yolo, {"none/": "", "data.yaml": "train: none\n" + PAIR}, ["data.yaml", "none", "no usable box"]),
        (as_yolo, {"l.txt": "./gone.png", "data.yaml": "train: l.txt\n" + PAIR}, ["data.yaml", "first left out", "gone.png"]),
        (as_yolo, {"l.txt": "\n", "data.yaml": "train: l.txt\n" + PAIR}, ["data.yaml", "l.txt", "no usable box"]),
        (as_yolo, {"labels/train/c.txt": "2 .5 .5 .1 .1"}, ["labels/train/c.txt", "line 1", "class 2", "2 names"]),
        (as_voc, {"ImageSets/Main/train.txt": ""}, ["`names`", "no label"]),
        (as_voc, {"data.yaml": "train: ImageSets/Main/train.txt\nnames: [cat]"}, ["b.xml: object 1", "'dog'", "['cat']"]),
        (as_coco, {"data.yaml": "train: train.json\nimages: photos\nnames: [cat]"}, ["train.json: annotation 2", "'dog'"]),
        (as_coco, {"train.json": "{"}, ["train.json", "not a COCO json"]),
        (as_coco, {"train.json": "[]"}, ["train.json", "not a COCO json"]),
        (as_coco, {"train.json": '{"images": []}'}, ["train.json", "not a COCO json", "categories"]),
        (as_coco, {"train.json": '{"images": {}, "categories": []}'}, ["train.json", "not a COCO json", "images"]),
        (as_coco, {"data.yaml": "train: gone.json"}, ["gone.json", "such file"]),
        (as_coco, {"data.yaml": "train: gone.json\nnames: [cat]"}, ["data.yaml", "train refers to", "gone.json"]),
        (as_yolo, {"data.yaml": TRAIN + "names: cat"}, ["data.yaml", "`names`", "list"]),
        (as_yolo, {"data.yaml": TRAIN + "names: [yes, no]"}, ["data.yaml", "`names` holds True", "quotes"]),
        (as_yolo, {"data.yaml": TRAIN + "nc: 80\n" + PAIR}, ["data.yaml", "`nc` is 80", "holds 2"]),
        (as_yolo, {"data.yaml": TRAIN + "names: 3"}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: coco"}, ["images/train", "folder"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: voc"}, ["data.yaml", "3 without a label file of format voc"]),
        (as_yolo, {"l.txt": "a", "data.yaml": "train: l.txt\nformat: voc\n" + PAIR}, ["l.txt", "images/a.jpg: no such"]),
        (as_yolo, {"data.yaml": "train: images/train/a.png\n" + PAIR}, ["images/train/a.png"]),
        (as_coco, {"train.json": '{"images": [{"id": 1}], "categories": []}'}, ["train.json", "file_name"]),
        (as_coco, {"train.json": '{"images": [], "categories": [{"id": 1}]}', "data.yaml": "train: train.json"},
            ["train.json", "name"]),
    ],
    ids=lambda x: x.__name__ if callable(x) else x[-1] if isinstance(x, list) else "",
)  # fmt: skip
def test_errors(
    tmp_path: Path, base: Callable[[Path], None], files: dict[str, str], words: list[str]
) -> None:
    base(tmp_path)
    lay_out(tmp_path, files)
    given = tmp_path / "data.yaml"
    with pytest.raises(InputError) as caught:
        load(given if given.is_file() else tmp_path)
    assert [word for word in words if word not in str(caught.value)] == []


def test_error_names_the_file_in_a_folder(tmp_path: Path) -> None:
    lay_out(tmp_path, {"data.yaml": "names: [cat"})
    with pytest.raises(InputError, match=r"data\.yaml: not valid YAML"):
        DatasetFile.read(str(tmp_path))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml: no such file"):
        DatasetFile.read(str(tmp_path / "gone.yaml"))


def test_a_file_of_labels(tmp_path: Path) -> None:
    as_coco(tmp_path)
    with pytest.raises(
        InputError, match=r"train\.json: a file of labels; .*\(train: train\.json\)"
    ):
        DatasetFile.read(str(tmp_path / "train.json"))


def test_annotations_of_another_tool(tmp_path: Path) -> None:
    lay_out(tmp_path, {"annotations.xml": "<annotations></annotations>"})
    with pytest.raises(InputError, match=f"expected a map .* CVAT .* convert {tmp_path}"):
        DatasetFile.read(str(tmp_path / "annotations.xml"))


def test_folder_that_says_nothing(tmp_path: Path) -> None:
    lay_out(tmp_path, {"ImageSets/Main/train.txt": "a"})  # but no Annotations
    with pytest.raises(
        InputError,
        match=f"{tmp_path}: .* write {tmp_path}/data.yaml",
    ):
        DatasetFile.read(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "0 .5 .5 .2 0\n",
            [
                "data.yaml",
                "no usable box in val",
                "first left out",
                "a.png: none of its objects",
                "line 1, zero width",
            ],
        ),
        ("\n", ["data.yaml", "no usable box in val (3 images"]),
        ("9 .5 .5 .2 .2\n", ["labels/train/a.txt", "class 9"]),
    ],
)
def test_data_module_refuses_labels_of_no_use(tmp_path: Path, line: str, words: list[str]) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {f"labels/train/{stem}.txt": line for stem in SCENES})
    lay_out(tmp_path, {"data.yaml": "val: images/train\n" + PAIR})
    with pytest.raises(InputError) as caught:
        DetectionData(str(tmp_path), image_size=64, workers=0).setup("validate")
    assert [word for word in words if word not in str(caught.value)] == []
