"""Files on disk -> Samples: formats, class names, COCO's extras, single class, a share of train as
val."""

import json
import re
import shutil
from pathlib import Path

import label_layouts
import numpy as np
import pytest
from made_datasets import (
    NAMES,
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
    picture,
    save,
    voc_object,
    voc_xml,
)
from made_runs import column
from shared import shared

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DEMO_ROOT, DatasetFile
from boltbox.detector.system.errors import InputError


def test_samples(tmp_path):
    as_yolo(tmp_path)
    dataset = load(tmp_path)
    assert dataset.names == NAMES
    assert files_of(dataset) == ["a.png", "b.png", "c.png"]
    assert (counts(dataset), dataset.faults) == ((3, 3, 1, 0), [])
    for k, sample in enumerate(dataset):
        height, width, objects = list(SCENES.values())[k]
        truth = np.array(objects).reshape(-1, 5)
        assert np.array_equal(sample.image, picture(height, width, k))
        assert (sample.boxes.dtype, sample.classes.dtype) == (np.float32, np.int64)
        assert sample.classes.tolist() == truth[:, 0].tolist()
        np.testing.assert_allclose(sample.boxes, truth[:, 1:], rtol=0, atol=1e-3)
        assert sample.polygons == [[] for _ in objects]
        assert sample.letterbox == (height, width, 1.0, 1.0, 0.0, 0.0)
        assert sample.index == k
        sample.boxes[:] = -1  # a copy of the labels
        assert (dataset[k].boxes >= 0).all()
    assert (k, dataset[-1].index) == (2, 2)


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("names: {1: dog, 0: cat}", ["cat", "dog"]),
        ("names: {'0': cat, '1': dog}", ["cat", "dog"]),
        ("names:\n- cat\n- dog\nnc: 2", ["cat", "dog"]),
        ("nc: 2", ["0", "1"]),
        ("names: [10, 2.5]", ["10", "2.5"]),
    ],
)
def test_names(tmp_path, lines, names):
    as_yolo(tmp_path)
    lay_out(tmp_path, {"data.yaml": f"{TRAIN}{lines}\n"})
    assert load(tmp_path).names == names


def test_paths_of_splits(here):
    """Beside the file before the current folder; images without their own label file; a test split
    that is not there."""
    save(here / "set/images/wrong.png", picture(20, 20))
    save(here / "about/set/images/right.png", picture(20, 20))
    lay_out(here, {"about/data.yaml": "path: set\ntrain: images\ntest: gone\nnames: [cat]\n"})
    file = DatasetFile.read("about/data.yaml")
    dataset = file.open("train", strict=False)
    assert files_of(dataset) == ["right.png"]
    assert dataset.unlabelled == 1
    assert list(file.splits) == ["train"]
    file = DatasetFile.read("demo")
    root = here / DEMO_ROOT
    assert file.splits == {"train": [root / "images/train"], "val": [root / "images/val"]}


def test_voc_difficult(tmp_path):
    """It is skipped; what follows an image ID in a list is ignored."""
    as_voc(tmp_path)
    hard = voc_object("cat", 3, 3, 9, 9, more="<difficult>1</difficult>")
    easy = voc_object("bee", more="<difficult>0</difficult>")
    lay_out(
        tmp_path, {"Annotations/a.xml": voc_xml(hard, easy), "Annotations/b.xml": voc_xml(hard)}
    )
    dataset = load(tmp_path)
    assert dataset.names == ["bee", "cat"]
    assert (counts(dataset), files_of(dataset)) == ((3, 1, 2, 0), ["a.png", "b.png", "c.png"])
    place = tmp_path / "Annotations/a.xml"
    assert str(dataset.faults[0]) == f"{place}, object 1 (cat): marked difficult"


def test_a_list_without_paths_is_one_of_voc(tmp_path):
    """Although none of its first images has labels."""
    lay_out(tmp_path, {"list.txt": "a\n", "data.yaml": "train: list.txt\nnames: [cat]\n"})
    assert DatasetFile.read(str(tmp_path / "data.yaml")).format == "voc"


@pytest.mark.parametrize(
    ("names", "expected", "classes"),
    [
        ("", ["dog", "cat"], [[1], [0, 1], []]),  # by id
        ("names: {0: cow, 1: dog, 2: cat}\n", ["cow", "dog", "cat"], [[2], [1, 2], []]),
    ],
)
def test_coco_names(tmp_path, names, expected, classes):
    as_coco(tmp_path)
    lay_out(tmp_path, {"data.yaml": f"train: train.json\nimages: [nowhere, photos]\n{names}"})
    dataset = load(tmp_path)
    assert dataset.names == expected
    for labels, expected_classes in zip(dataset.labels, classes, strict=True):
        assert labels.classes.tolist() == expected_classes
    text = (tmp_path / "train.json").read_text()
    lay_out(tmp_path, {"train.json": text.replace('"dog"', '"cat"')})
    one = expected[2:] or ["cat"]  # categories of one name are one class
    number = load(tmp_path).names.index(*one)
    assert load(tmp_path).labels[1].classes.tolist() == [number, number]


def test_coco_sets_whose_images_have_the_same_names(tmp_path):
    """As CVAT names the frames of each film."""
    for name in ("a", "b"):
        as_coco(tmp_path / name)
    lay_out(tmp_path, {"data.yaml": "train: b/train.json\nimages: [a/photos, b/photos]\n"})
    assert {Path(file).parts[-3] for file in load(tmp_path).files} == {"b"}


def test_coco_segmentation_crowd_area(tmp_path):
    triangle = [10, 20, 40, 20, 40, 30]
    square = [10, 22, 12, 22, 12, 24, 10, 24]
    mask = {"counts": [5, 10, 2385], "size": [40, 60]}
    odd = [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 1e30], ["x"] * 6]
    annotations = [
        {"segmentation": [triangle, square], "area": 154.5, "iscrowd": 0},
        {"segmentation": mask, "iscrowd": 1, "category_id": 3, "area": 77},
        {"segmentation": odd, "area": 1e30},
        {"segmentation": [square, triangle], "bbox": None},
        {"image_id": 10, "iscrowd": 1},
    ]
    content = coco_with(annotations)
    content["images"].append({"id": 40, "file_name": "z.png"})
    as_coco(tmp_path, content)
    data = "train: train.json\nimages: [., photos]\nnames: [cat, dog]\n"
    lay_out(tmp_path, {"data.yaml": data})
    dataset = load(tmp_path)
    assert dataset.faults[0].file == str(tmp_path / "photos/z.png"), "missing where the others are"
    labels = dataset.labels[0]
    parts = [np.reshape(part, (-1, 2)).tolist() for part in (triangle, square)]
    polygons = [[part.tolist() for part in of] for of in labels.polygons]
    assert polygons == [parts, [], [], parts[::-1]]
    assert labels.boxes[3].tolist() == [10, 20, 40, 30], "around both parts"
    assert labels.crowd.tolist() == [False, True, False, False]
    assert labels.area.tolist() == [154.5, 77, 300, 300], "30 x 10 where none is given"
    assert dataset.class_counts().tolist() == [3, 0], "the crowd is not counted"
    assert "5 boxes, 2 of them crowd regions" in dataset.summary()[0]
    assert dataset[0].classes.tolist() == [0, 0, 0], "and in no sample"
    assert len(dataset[0].polygons) == 3
    assert dataset[1].boxes.shape == (0, 4)


def test_csv_files_side_by_side(tmp_path):
    """Images of another split are no background."""
    for split in ("train", "val"):
        save(tmp_path / f"{split}.png", picture(40, 60))
        text = label_layouts.csv([]) + f"{split}.png,60,40,cat,1,2,9,9\n"
        lay_out(tmp_path, {f"{split}.csv": text})
    lay_out(tmp_path, {"data.yaml": "train: train.csv\nval: val.csv\n"})
    assert files_of(load(tmp_path)) == ["train.png"]
    (tmp_path / "val.csv").rename(tmp_path / "._val.csv")  # macOS writes such files
    lay_out(tmp_path, {"data.yaml": "train: train.csv\n"})
    assert files_of(load(tmp_path)) == ["train.png", "val.png"]


@pytest.mark.parametrize("layout", ["coco", "csv", "jsonl"])
def test_an_image_that_two_files_list(tmp_path, layout):
    """It is one image with the objects of both, each once."""
    text = getattr(label_layouts, layout)(["p1"])
    moved = text.replace("16.0", "17.0", 1)
    lay_out(tmp_path, {f"a.{layout}": text, f"b.{layout}": moved})
    format = "metadata" if layout == "jsonl" else layout
    content = f"train: [a.{layout}, b.{layout}]\nformat: {format}\nnames: {NAMES[:2]}\n"
    lay_out(tmp_path, {"data.yaml": content})
    save(tmp_path / "p1.png", picture(64, 128))
    dataset = load(tmp_path)
    assert [len(labels.boxes) for labels in dataset.labels] == [3]
    (fault,) = dataset.faults
    assert (fault.kind, f"b.{layout} lists" in fault.where) == ("duplicate_box", True)


def test_class_counts(tmp_path):
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/c.txt": "55 .5 .5 .1 .1"})
    for names, expected in ((PAIR, "item"), ("names: [cell]", "cell")):
        lay_out(tmp_path, {"data.yaml": TRAIN + names})
        dataset = DatasetFile.read(str(tmp_path)).open("train", single_class=True)
        assert dataset.names == [expected]
        assert dataset.class_counts().tolist() == [4]
    lay_out(tmp_path, {"data.yaml": TRAIN + f"names: {list(map(str, range(57)))}"})
    assert load(tmp_path).class_counts()[[0, 1, 55, 56]].tolist() == [2, 1, 1, 0]


def test_objects_in_metadata(tmp_path):
    """A list of objects as well as a map of lists; U+2028 ends no line, and a name that no file can
    have is no image. A box without a class is an error."""
    rows = [
        {"file_name": "0.png", "text": "\u2028", "objects": [{"bbox": [1, 1, 9, 9], "category": "cat"}]},
        {"file_name": "1.png", "objects": {"bbox": [[1, 1, 9, 9]], "categories": ["cat"]}},
        {"file_name": "a\0b.png", "objects": {"bbox": [], "category": []}},
    ]  # fmt: skip
    for k in range(2):
        save(tmp_path / f"train/{k}.png", picture(40, 60, k))
    lay_out(tmp_path, {"data.yaml": "train: train/metadata.jsonl\nnames: [cat]\n"})

    def split():
        lines = ""
        for row in rows:
            lines += json.dumps(row, ensure_ascii=False) + "\n"
        (tmp_path / "train/metadata.jsonl").write_text(lines, encoding="utf-8")
        return load(tmp_path)

    assert [len(labels.boxes) for labels in split().labels] == [1, 1]
    rows[1]["objects"]["bbox"].append([2, 2, 9, 9])
    with pytest.raises(InputError, match=r"line 2, object 2 .*'None'"):
        split()


def split_of(root):
    """The stems of the images of each split, of which val is two fifths."""
    file = DatasetFile.read(str(root), split=0.4)
    found = {}
    for split in ("train", "val"):
        found[split] = [Path(path).stem for path in file.open(split, strict=False).files]
    return found


def test_a_share_of_train_is_val(tmp_path):
    """The same elsewhere and later; one image more moves at most one."""
    for name in ("images_and_labels", "label_studio_coco", "kaggle"):
        root = label_layouts.LAYOUTS[name].write(tmp_path / name)
        first = split_of(root)
        assert sorted(first["train"] + first["val"]) == list(label_layouts.PICTURES)
        assert len(first["val"]) == 2
        assert split_of(shutil.copytree(root, tmp_path / "b" / name)) == first
        assert first["val"] != ["p0", "p1"], "not the first ones of the alphabet"
    save(root / "images/more.png", picture(20, 20))
    assert len(set(first["val"] + split_of(root)["val"])) <= 3
    lay_out(root, {"data.yaml": "train: images\nsplit: 0.4\n"})
    data = DetectionData(str(root), image_size=64, workers=0)
    data.setup("fit")
    assert (len(data.datasets["train"]), len(data.datasets["val"])) == (4, 3)


def test_an_object_of_no_image_is_reported_once(tmp_path):
    as_coco(tmp_path, coco_with([{"image_id": "none"}]))
    file = DatasetFile.read(str(tmp_path), split=0.4)
    assert [len(file.open(split, strict=False).faults) for split in ("train", "val")] == [1, 0]


def test_summary(tmp_path):
    as_yolo(tmp_path)
    lines = "0 2 .5 .5 .5\n" * 11
    lay_out(tmp_path, {"labels/train/a.txt": f"{lines}0 .5 .5 .5 .5\n"})
    (tmp_path / "labels/train/c.txt").unlink()
    (tmp_path / "images/train/b.png").write_text("")
    first, *rest = load(tmp_path).summary()
    assert re.findall(r"\d+", first) == ["2", "1", "1", "1", "11", "1"]
    assert len(rest) == 11
    assert "b.png" in rest[0], "images first"
    assert "2 more" in rest[-1]


BCCD = "data/bccd/BCCD"


@pytest.mark.parametrize(
    ("name", "split", "expected", "faults"),
    [  # images, boxes, images without objects, images without a label file
        (BCCD, "train", (205, 2804, 0, 0), {"object 4 (RBC)"}),
        (BCCD, "val", (87, 1137, 0, 0), {"object 13 (RBC)"}),
        (BCCD, "test", (72, 945, 0, 0), set()),
        # two label files, of 12 lines, are there whose images are not
        ("data/coco128_val128", "train", (128, 929, 2, 2), set()),
        ("data/coco128_val128", "val", (128, 898, 0, 0), set()),
        # FAULTS.tsv counts them: boxes of no size, one empty and one missing label file
        ("data/real_faults", "train", (10, 216, 2, 1), {"line 13", "line 4", "line 15"}),
        ("data/real_faults", "val", (4, 122, 0, 0), {"line 17"}),
    ],
)
def test_counts(name, split, expected, faults):
    dataset = load(shared(name), split)
    assert counts(dataset) == expected
    assert set(column(dataset.faults, "where")) == faults
