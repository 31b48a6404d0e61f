"""Files on disk -> Samples: three label formats, the variants of data.yaml, where files are found,
single class."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_datasets import (
    NAMES,
    SCENES,
    TRAIN,
    as_coco,
    as_voc,
    as_yolo,
    coco_content,
    coco_with,
    counts,
    files_of,
    lay_out,
    load,
    picture,
    save,
    voc_object,
    voc_xml,
)

from boltbox.detector.data.dataset_file import DEMO_ROOT, DatasetFile
from boltbox.detector.data.datasets import Fault
from boltbox.detector.data.formats.yolo_txt import YoloText


@pytest.mark.parametrize("write", [as_yolo, as_voc, as_coco])
def test_each_format_gives_the_same_samples(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    assert DatasetFile.read(str(tmp_path)).format == write.__name__.removeprefix("as_")
    dataset = load(tmp_path)
    assert dataset.names == NAMES
    assert files_of(dataset) == ["a.png", "b.png", "c.png"]
    assert (counts(dataset), dataset.faults) == ((3, 3, 1, 0), [])
    assert dataset.labels.sizes.tolist() == [[40, 60], [100, 37], [64, 64]]
    for k, (height, width, objects) in enumerate(SCENES.values()):
        sample = dataset[k]
        truth = np.array(objects).reshape(-1, 5)
        assert np.array_equal(sample.image, picture(height, width, k))
        assert (sample.image.dtype, sample.boxes.dtype, sample.classes.dtype) == (
            np.uint8,
            np.float32,
            np.int64,
        )
        assert sample.classes.tolist() == truth[:, 0].tolist()
        np.testing.assert_allclose(sample.boxes, truth[:, 1:], rtol=0, atol=1e-3)
        assert sample.parts() == [[] for _ in objects]
        assert sample.letterbox == (height, width, 1.0, 1.0, 0.0, 0.0)
        assert sample.index == k


def test_sample_is_a_copy_of_the_labels(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    dataset = load(tmp_path)
    sample = dataset[1]
    sample.boxes[:] = -1
    sample.classes[:] = 7
    assert dataset[1].classes.tolist() == [1, 0]
    assert dataset[1].boxes.min() == 0


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("names: [cat, dog]", ["cat", "dog"]),
        ("names: {1: dog, 0: cat}", ["cat", "dog"]),
        ("names: {'0': cat, '1': dog}", ["cat", "dog"]),
        ("names:\n- cat\n- dog\nnc: 2", ["cat", "dog"]),
        ("nc: 2", ["0", "1"]),
        ("names: [10, 2.5]", ["10", "2.5"]),
    ],
)
def test_names(tmp_path: Path, lines: str, names: list[str]) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"data.yaml": f"train: images/train\n{lines}\n"})
    assert load(tmp_path).names == names


@pytest.mark.parametrize(
    "lines",
    [
        "path: ../sets/one\ntrain: images/train",  # from the file
        "path: sets/one\ntrain: images/train",  # from the current folder
        "path: {tmp}/sets/one\ntrain: images/train",
        "train: ../sets/one/images/train",  # no path: beside the file
        "train: sets/one/images/train",  # or from the current folder
        "train: {tmp}/sets/one/images/train",
        "path: ../sets\ntrain: one/images/train",
    ],
)
def test_where_paths_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    as_yolo(tmp_path / "sets/one")
    lay_out(tmp_path, {"about/data.yaml": lines.format(tmp=tmp_path) + "\nnames: [cat, dog]\n"})
    monkeypatch.chdir(tmp_path)
    dataset = load(Path("about/data.yaml"))
    assert files_of(dataset) == ["a.png", "b.png", "c.png"]
    assert len(dataset.labels.boxes) == 3


def test_path_beside_the_file_comes_before_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "set/images/wrong.png", picture(20, 20))
    save(tmp_path / "about/set/images/right.png", picture(20, 20))
    lay_out(tmp_path, {"about/data.yaml": "path: set\ntrain: images\nnames: [cat]\n"})
    monkeypatch.chdir(tmp_path)
    file = DatasetFile.read("about/data.yaml")
    assert files_of(file.open("train", strict=False)) == ["right.png"]


@pytest.mark.parametrize(
    ("train", "found"),
    [
        ("images/train", "abc"),
        ("images", "abcd"),
        ("dotted.txt", "ab"),
        ("from_root.txt", "ab"),
        ("absolute.txt", "ab"),
        ("lists/beside.txt", "ab"),
        ("lists/from_root.txt", "ab"),
        ("[images/more, dotted.txt]", "abd"),
        ("[images/train, images/train, dotted.txt]", "abc"),
    ],
)
def test_what_a_split_can_be(tmp_path: Path, train: str, found: str) -> None:
    as_yolo(tmp_path)
    save(tmp_path / "images/more/deep/d.png", picture(32, 32))
    lay_out(
        tmp_path,
        {
            # the label of a nested image is nested too
            "labels/more/deep/d.txt": "1 0.5 0.5 0.25 0.5",
            "images/train/notes.md": "not an image",
            "dotted.txt": "./images/train/a.png\n\n./images/train/b.png\n",
            "from_root.txt": "images/train/a.png\nimages/train/b.png",
            "absolute.txt": f"{tmp_path}/images/train/a.png\n  {tmp_path}/images/train/b.png  \n",
            "lists/beside.txt": "./../images/train/a.png\n../images/train/b.png\n",
            "lists/from_root.txt": "images/train/a.png\nimages/train/b.png\n",
            "data.yaml": f"train: {train}\nnames: [cat, dog]\n",
        },
    )
    dataset = load(tmp_path)
    assert sorted(files_of(dataset)) == [f"{k}.png" for k in found]
    boxes = {"a": 1, "b": 2, "c": 0, "d": 1}
    assert {
        Path(f).stem: len(x.boxes) for f, x in zip(dataset.files, dataset.labels, strict=True)
    } == {k: boxes[k] for k in found}
    assert dataset.faults == []


@pytest.mark.parametrize(
    ("image", "labels"),
    [
        ("/d/images/train/a.jpg", "/d/labels/train/a.txt"),
        ("/images/d/images/a.b.jpeg", "/images/d/labels/a.b.txt"),
        ("images/a.png", "labels/a.txt"),
        ("/images.old/a.png", "/images.old/a.txt"),
        ("/images/images.png", "/labels/images.txt"),
        ("photos/a.tif", "photos/a.txt"),
    ],
)
def test_label_path(image: str, labels: str) -> None:
    assert YoloText.label_path(image) == labels


def test_splits_are_separate(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    save(tmp_path / "images/val/v.png", picture(20, 30))
    lay_out(
        tmp_path,
        {
            "data.yaml": "train: images/train\nval: images/val\ntest: [images/val, images/train]\nnames: [cat, dog]\n"
        },
    )
    file = DatasetFile.read(str(tmp_path))
    assert [len(file.open(s, strict=False)) for s in ("train", "val", "test")] == [3, 1, 4]


def test_demo_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = DatasetFile.read("demo")
    assert file.names == ["disc", "ring", "star", "triangle", "cross"]
    assert file.splits == {"train": [DEMO_ROOT / "images/train"], "val": [DEMO_ROOT / "images/val"]}
    assert not list(tmp_path.iterdir()), "nothing is drawn before it is needed"


def test_voc_folder_without_yaml(tmp_path: Path) -> None:
    as_voc(tmp_path)
    lay_out(
        tmp_path,
        {
            "ImageSets/Main/val.txt": "b  1\n\nc -1\n",
            "Annotations/b.xml": voc_xml(voc_object("bee")),
        },
    )
    file = DatasetFile.read(str(tmp_path))
    assert file.names == ["bee", "cat"], "what occurs, in alphabetical order"
    assert sorted(file.splits) == ["train", "val"]
    val = load(tmp_path, "val")
    assert files_of(val) == ["b.png", "c.png"], "what follows the id is ignored"
    assert val.labels[0].boxes.tolist() == [[1, 2, 11, 22]]
    assert val.labels[0].classes.tolist() == [0]


@pytest.mark.parametrize(
    ("train", "val"), [("train", "valid"), ("trainval", "val"), ("train2012", "validation")]
)
def test_voc_lists_by_other_names(tmp_path: Path, train: str, val: str) -> None:
    as_voc(tmp_path)
    lists = tmp_path / "ImageSets/Main"
    (lists / "train.txt").rename(lists / f"{train}.txt")
    save(tmp_path / "JPEGImages/d e.png", picture(40, 30))
    lay_out(
        tmp_path,
        {
            f"ImageSets/Main/{val}.txt": "d e\n",
            "ImageSets/Main/cat_val.txt": "a 1\n",
            "Annotations/d e.xml": voc_xml(voc_object("cat")),
        },
    )
    assert files_of(load(tmp_path)) == ["a.png", "b.png", "c.png"]
    assert files_of(load(tmp_path, "val")) == ["d e.png"]


def test_voc_folders_with_years(tmp_path: Path) -> None:
    for split in ("train2017", "val2017"):
        save(tmp_path / f"images/{split}/{split}.png", picture(40, 30))
        path = f"annotations/{split}/{split}.xml"
        lay_out(tmp_path, {path: voc_xml(voc_object("cat"))})
        assert files_of(load(tmp_path, split[:-4])) == [f"{split}.png"]


def test_voc_by_yaml(tmp_path: Path) -> None:
    as_voc(tmp_path / "VOC")
    (tmp_path / "VOC/Annotations/c.xml").unlink()
    lay_out(
        tmp_path,
        {"data.yaml": "path: VOC\ntrain: ImageSets/Main/train.txt\nnames: [dog, cow, cat]\n"},
    )
    dataset = load(tmp_path)
    assert [x.classes.tolist() for x in dataset.labels] == [[2], [0, 2], []]
    assert dataset.unlabelled == 1


def test_voc_difficult(tmp_path: Path) -> None:
    as_voc(tmp_path)
    hard = voc_object("cat", 3, 3, 9, 9, more="<difficult>1</difficult>")
    easy = voc_object("dog", more="<difficult>0</difficult>")
    lay_out(tmp_path, {"Annotations/a.xml": voc_xml(hard, easy), "ImageSets/Main/train.txt": "a"})
    dataset = load(tmp_path)
    assert len(dataset.labels.boxes) == 1
    assert dataset.faults == [
        Fault(str(tmp_path / "Annotations/a.xml"), "object 1 (cat)", "marked difficult")
    ]


def test_coco_names_come_from_the_categories_by_id(tmp_path: Path) -> None:
    as_coco(tmp_path)
    lay_out(tmp_path, {"data.yaml": "train: train.json\nimages: [nowhere, photos]\n"})
    dataset = load(tmp_path)
    assert dataset.names == ["dog", "cat"], "ids 3 and 17"
    assert [x.classes.tolist() for x in dataset.labels] == [[1], [0, 1], []]


def test_coco_categories_of_one_name_are_one_class(tmp_path: Path) -> None:
    as_coco(tmp_path)
    lay_out(tmp_path, {"data.yaml": "train: train.json\nimages: photos\n"})
    text = (tmp_path / "train.json").read_text()
    (tmp_path / "train.json").write_text(text.replace('"dog"', '"cat"'))
    dataset = load(tmp_path)
    assert dataset.names == ["cat"]
    assert [x.classes.tolist() for x in dataset.labels] == [[0], [0, 0], []]


def test_coco_categories_are_matched_by_name(tmp_path: Path) -> None:
    as_coco(tmp_path)
    lay_out(
        tmp_path,
        {"data.yaml": "train: train.json\nimages: photos\nnames: {0: cow, 1: dog, 2: cat}\n"},
    )
    assert [x.classes.tolist() for x in load(tmp_path).labels] == [[2], [1, 2], []]


def test_coco_segmentation_crowd_area(tmp_path: Path) -> None:
    triangle = [10, 20, 40, 20, 40, 30]
    square = [10, 22, 12, 22, 12, 24, 10, 24]
    content = coco_with(
        [
            {"segmentation": [triangle, square], "area": 154.5, "iscrowd": 0},
            {
                "segmentation": {"counts": [5, 10, 2385], "size": [40, 60]},
                "iscrowd": 1,
                "category_id": 3,
                "area": 77,
            },
            {"segmentation": {"counts": "abc", "size": [40, 60]}},
            # two points; an odd number of coordinates
            {"segmentation": [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]},
            {"segmentation": []},
        ]
    )
    as_coco(tmp_path, content)
    dataset = load(tmp_path)
    labels = dataset.labels[0]
    assert [[part.tolist() for part in parts] for parts in labels.polygons] == [
        [[[10, 20], [40, 20], [40, 30]], [[10, 22], [12, 22], [12, 24], [10, 24]]],
        *[[]] * 4,
    ]
    assert labels.crowd.tolist() == [False, True, False, False, False]
    assert labels.area.tolist() == [154.5, 77, 300, 300, 300], "30 x 10 where none is given"
    assert dataset.class_counts().tolist() == [4, 0], "the crowd is not counted"
    assert len(dataset.labels.boxes) == 5


def test_crowd_is_in_the_truth_but_not_in_the_sample(tmp_path: Path) -> None:
    as_coco(
        tmp_path,
        coco_with(
            [
                {"iscrowd": 1, "bbox": [0, 0, 60, 40]},
                {"category_id": 3},
                {"image_id": 10, "iscrowd": 1},
            ]
        ),
    )
    dataset = load(tmp_path)
    assert dataset[0].classes.tolist() == [1]
    assert dataset[0].boxes.tolist() == [[10, 20, 40, 30]]
    assert dataset[0].parts() == [[]]
    assert dataset[1].boxes.shape == (0, 4)
    truth = dataset.labels[0]
    assert truth.crowd.tolist() == [True, False]
    assert truth.boxes.tolist() == [[0, 0, 60, 40], [10, 20, 40, 30]]


@pytest.mark.parametrize(
    ("json_at", "folder"),
    [
        ("train.json", "images/train"),
        ("train.json", "train"),
        ("train.json", "images"),
        ("train.json", "."),
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("some/where/x.json", "some/where"),
    ],
)
def test_where_coco_images_are_found(tmp_path: Path, json_at: str, folder: str) -> None:
    for stem, (h, w, _) in SCENES.items():
        save(tmp_path / folder / f"{stem}.png", picture(h, w))
    lay_out(tmp_path, {json_at: json.dumps(coco_content()), "data.yaml": f"train: {json_at}\n"})
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "b.png", "c.png"]
    assert dataset.faults == []


def test_several_coco_files(tmp_path: Path) -> None:
    """Ids are only unique within a file, and each file has categories of its own."""
    as_coco(tmp_path)
    save(tmp_path / "photos/z.png", picture(30, 30))
    other = {
        "images": [{"id": 30, "file_name": "z.png"}],
        "annotations": [{"id": 1, "image_id": 30, "category_id": 1, "bbox": [1, 1, 2, 2]}],
        "categories": [{"id": 1, "name": "dog"}],
    }
    lay_out(tmp_path, {"more.json": json.dumps(other)})
    lay_out(
        tmp_path,
        {"data.yaml": "train: [train.json, more.json]\nimages: photos\nnames: [cat, dog]\n"},
    )
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "b.png", "c.png", "z.png"]
    assert [x.classes.tolist() for x in dataset.labels] == [[0], [1, 0], [], [1]]


def test_single_class(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/c.txt": "55 .5 .5 .1 .1"})
    dataset = DatasetFile.read(str(tmp_path)).open("train", single_class=True)
    assert dataset.names == ["item"]
    assert dataset.class_counts().tolist() == [4]
    assert dataset[1].classes.tolist() == [0, 0]


def test_single_class_keeps_a_single_name(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"data.yaml": TRAIN + "names: [cell]"})
    dataset = DatasetFile.read(str(tmp_path)).open("train", single_class=True)
    assert dataset.names == ["cell"]
    assert dataset.class_counts().tolist() == [3]


def test_class_counts_has_a_place_for_absent_classes(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"data.yaml": TRAIN + "names: [cat, dog, cow, eel]"})
    assert load(tmp_path).class_counts().tolist() == [2, 1, 0, 0]
