"""Files on disk -> Samples: three label formats, the variants of data.yaml, every fault named, image files of every kind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from golden.cases import SHARED
from PIL import Image

from detector.data.augment import ValidationSamples
from detector.data.datamodule import DetectionData
from detector.data.dataset_file import DEMO_ROOT, DatasetFile
from detector.data.datasets import DetectionDataset
from detector.data.images import find_images, image_size, image_sizes, read_image
from detector.data.report import DataReport, Fault
from detector.data.yolo_txt import label_path
from detector.errors import InputError

# Three images: height, width, objects as class and xyxy pixels. The boxes are exact in binary, so that text keeps them.
SCENES: dict[str, tuple[int, int, list[tuple[int, float, float, float, float]]]] = {
    "a": (40, 60, [(0, 5.25, 10.5, 30.75, 39.0)]),
    "b": (100, 37, [(1, 0.0, 50.0, 37.0, 100.0), (0, 1.5, 2.5, 12.25, 20.0)]),
    "c": (64, 64, []),
}
NAMES = ["cat", "dog"]


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Random (height, width, 3) uint8 RGB."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def bgr(array: np.ndarray) -> np.ndarray:
    """Grey (H, W), or (H, W, 3) RGB in OpenCV's order."""
    return array[..., ::-1] if array.ndim == 3 else array


def save(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), bgr(image))
    return path


def lay_out(root: Path, files: dict[str, str]) -> None:
    """Text files by relative path; a path that ends with a slash is an empty folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.write_text(text)


def yolo_line(c: int, x1: float, y1: float, x2: float, y2: float, width: int, height: int) -> str:
    centre = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height
    return " ".join(f"{v:.9g}" for v in (c, *centre, (x2 - x1) / width, (y2 - y1) / height))


def voc_object(name: str, xmin: Any = 1, ymin: Any = 2, xmax: Any = 11, ymax: Any = 22, more: str = "") -> str:
    corners = "".join(
        f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), (xmin, ymin, xmax, ymax), strict=True)
    )
    return f"<object><name>{name}</name>{more}<bndbox>{corners}</bndbox></object>"


def voc_xml(*objects: str) -> str:
    return f"<annotation>{''.join(objects)}</annotation>"


def as_yolo(root: Path) -> None:
    for k, (stem, (h, w, objects)) in enumerate(SCENES.items()):
        save(root / f"images/train/{stem}.png", picture(h, w, k))
        lay_out(root, {f"labels/train/{stem}.txt": "".join(yolo_line(*o, w, h) + "\n" for o in objects)})
    lay_out(root, {"data.yaml": "path: .\ntrain: images/train\nnames: [cat, dog]\n"})


def as_voc(root: Path) -> None:
    for k, (stem, (h, w, objects)) in enumerate(SCENES.items()):
        save(root / f"JPEGImages/{stem}.png", picture(h, w, k))
        lay_out(root, {f"Annotations/{stem}.xml": voc_xml(*(voc_object(NAMES[c], *box) for c, *box in objects))})
    lay_out(root, {"ImageSets/Main/train.txt": "b\nc\na\n"})


def coco_content() -> dict[str, list[dict[str, Any]]]:
    """The scenes with category ids 17 and 3, and image ids that are not in the order of the files."""
    images, annotations = [], []
    for image_id, (stem, (h, w, objects)) in zip((30, 10, 20), SCENES.items(), strict=True):
        images.append({"id": image_id, "file_name": f"{stem}.png", "height": h, "width": w})
        for c, x1, y1, x2, y2 in objects:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": (17, 3)[c],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                }
            )
    return {
        "images": images[::-1],
        "annotations": annotations,
        "categories": [{"id": 3, "name": "dog"}, {"id": 17, "name": "cat"}],
    }


def as_coco(root: Path, content: dict[str, Any] | None = None) -> None:
    for k, (stem, (h, w, _)) in enumerate(SCENES.items()):
        save(root / f"photos/{stem}.png", picture(h, w, k))
    files = {"train.json": json.dumps(content or coco_content())}
    lay_out(root, {**files, "data.yaml": "train: train.json\nimages: photos\nnames: [cat, dog]\n"})


def load(given: Path, split: str = "train") -> DetectionDataset:
    dataset = DatasetFile.read(str(given)).open(split)
    dataset.check_classes()
    return dataset


def files_of(dataset: DetectionDataset) -> list[str]:
    return [Path(f).name for f in dataset.files]


# ---- The same set in each format


@pytest.mark.parametrize("write", [as_yolo, as_voc, as_coco])
def test_each_format_gives_the_same_samples(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    assert DatasetFile.read(str(tmp_path)).format == write.__name__.removeprefix("as_")
    dataset = load(tmp_path)
    assert dataset.names == NAMES
    assert files_of(dataset) == ["a.png", "b.png", "c.png"]
    assert dataset.report == DataReport(images=3, boxes=3, background=1)
    assert dataset.shapes().tolist() == [[40, 60], [100, 37], [64, 64]]
    for k, (height, width, objects) in enumerate(SCENES.values()):
        sample, truth = dataset[k], np.array(objects).reshape(-1, 5)
        assert np.array_equal(sample.image, picture(height, width, k))
        assert (sample.image.dtype, sample.boxes.dtype, sample.classes.dtype) == (np.uint8, np.float32, np.int64)
        assert sample.classes.tolist() == truth[:, 0].tolist()
        np.testing.assert_allclose(sample.boxes, truth[:, 1:], rtol=0, atol=1e-3)
        assert sample.polygons == [[] for _ in objects]
        assert sample.frame == (height, width, 1.0, 1.0, 0.0, 0.0)
        assert sample.index == k


def test_sample_is_a_copy_of_the_labels(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    dataset = load(tmp_path)
    sample = dataset[1]
    sample.boxes[:], sample.classes[:] = -1, 7
    sample.polygons.pop()
    assert dataset[1].classes.tolist() == [1, 0]
    assert dataset[1].boxes.min() == 0
    assert len(dataset[1].polygons) == 2


# ---- data.yaml


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
    assert dataset.report.boxes == 3


def test_path_beside_the_file_comes_before_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "set/images/wrong.png", picture(20, 20))
    save(tmp_path / "about/set/images/right.png", picture(20, 20))
    lay_out(tmp_path, {"about/data.yaml": "path: set\ntrain: images\nnames: [cat]\n"})
    monkeypatch.chdir(tmp_path)
    assert files_of(load(Path("about/data.yaml"))) == ["right.png"]


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
            "labels/more/deep/d.txt": "1 0.5 0.5 0.25 0.5",  # the label of a nested image is nested too
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
    assert {Path(f).stem: len(x.boxes) for f, x in zip(dataset.files, dataset.labels, strict=True)} == {
        k: boxes[k] for k in found
    }
    assert dataset.report.lost_images == dataset.report.faults == []


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
    assert label_path(image) == Path(labels)


def test_splits_are_separate(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    save(tmp_path / "images/val/v.png", picture(20, 30))
    lay_out(
        tmp_path, {"data.yaml": "train: images/train\nval: images/val\ntest: [images/val, images/train]\nnames: [cat, dog]\n"}
    )
    assert [len(load(tmp_path, split)) for split in ("train", "val", "test")] == [3, 1, 4]


def test_demo_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = DatasetFile.read("demo")
    assert file.names == ["disc", "ring", "star", "triangle", "cross"]
    assert file.splits == {"train": [DEMO_ROOT / "images/train"], "val": [DEMO_ROOT / "images/val"]}
    assert not list(tmp_path.iterdir()), "nothing is drawn before it is needed"


# ---- VOC


def test_voc_folder_without_yaml(tmp_path: Path) -> None:
    as_voc(tmp_path)
    lay_out(tmp_path, {"ImageSets/Main/val.txt": "b  1\n\nc -1\n", "Annotations/b.xml": voc_xml(voc_object("bee"))})
    file = DatasetFile.read(str(tmp_path))
    assert file.names == ["bee", "cat"], "what occurs, in alphabetical order"
    assert sorted(file.splits) == ["train", "val"]
    val = load(tmp_path, "val")
    assert files_of(val) == ["b.png", "c.png"], "what follows the id is ignored"
    assert val.labels[0].boxes.tolist() == [[1, 2, 11, 22]]
    assert val.labels[0].classes.tolist() == [0]


def test_voc_by_yaml(tmp_path: Path) -> None:
    as_voc(tmp_path / "VOC")
    (tmp_path / "VOC/Annotations/c.xml").unlink()
    lay_out(tmp_path, {"data.yaml": "path: VOC\ntrain: ImageSets/Main/train.txt\nnames: [dog, cow, cat]\n"})
    dataset = load(tmp_path)
    assert [x.classes.tolist() for x in dataset.labels] == [[2], [0, 2], []]
    assert dataset.report.unlabelled == 1


@pytest.mark.parametrize(("option", "boxes", "faults"), [("", 1, 1), ("keep_difficult: true", 2, 0)])
def test_voc_difficult(tmp_path: Path, option: str, boxes: int, faults: int) -> None:
    as_voc(tmp_path)
    hard = voc_object("cat", 3, 3, 9, 9, more="<difficult>1</difficult>")
    lay_out(
        tmp_path,
        {
            "Annotations/a.xml": voc_xml(hard, voc_object("dog", more="<difficult>0</difficult>")),
            "ImageSets/Main/one.txt": "a",
            "data.yaml": f"train: ImageSets/Main/one.txt\nformat: voc\n{option}\n",
        },
    )
    dataset = load(tmp_path)
    assert dataset.report.boxes == boxes
    named = Fault(str(tmp_path / "Annotations/a.xml"), "object 1 (cat)", "marked difficult")
    assert dataset.report.faults == [named][:faults]


# ---- COCO


def coco_with(annotations: list[dict[str, Any]]) -> dict[str, Any]:
    """These annotations, by default of image a.png (40 x 60 pixels) and category cat."""
    defaults = {"image_id": 30, "category_id": 17, "bbox": [10, 20, 30, 10]}
    return {**coco_content(), "annotations": [{"id": 101 + k, **defaults, **a} for k, a in enumerate(annotations)]}


def test_coco_names_come_from_the_categories_by_id(tmp_path: Path) -> None:
    as_coco(tmp_path)
    lay_out(tmp_path, {"data.yaml": "train: train.json\nimages: [nowhere, photos]\n"})
    dataset = load(tmp_path)
    assert dataset.names == ["dog", "cat"], "ids 3 and 17"
    assert [x.classes.tolist() for x in dataset.labels] == [[1], [0, 1], []]


def test_coco_categories_are_matched_by_name(tmp_path: Path) -> None:
    as_coco(tmp_path)
    lay_out(tmp_path, {"data.yaml": "train: train.json\nimages: photos\nnames: {0: cow, 1: dog, 2: cat}\n"})
    assert [x.classes.tolist() for x in load(tmp_path).labels] == [[2], [1, 2], []]


def test_coco_segmentation_crowd_area(tmp_path: Path) -> None:
    triangle, square = [10, 20, 40, 20, 40, 30], [10, 22, 12, 22, 12, 24, 10, 24]
    content = coco_with(
        [
            {"segmentation": [triangle, square], "area": 154.5, "iscrowd": 0},
            {"segmentation": {"counts": [5, 10, 2385], "size": [40, 60]}, "iscrowd": 1, "category_id": 3, "area": 77},
            {"segmentation": {"counts": "abc", "size": [40, 60]}},
            {"segmentation": [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]},  # two points; an odd number of coordinates
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
    assert dataset.report.boxes == 5


def test_crowd_is_in_the_truth_but_not_in_the_sample(tmp_path: Path) -> None:
    as_coco(tmp_path, coco_with([{"iscrowd": 1, "bbox": [0, 0, 60, 40]}, {"category_id": 3}, {"image_id": 10, "iscrowd": 1}]))
    dataset = load(tmp_path)
    assert dataset[0].classes.tolist() == [1]
    assert dataset[0].boxes.tolist() == [[10, 20, 40, 30]]
    assert len(dataset[0].polygons) == 1
    assert dataset[1].boxes.shape == (0, 4)
    truth = ValidationSamples(dataset, [])[0].truth
    assert truth is not None
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
    assert dataset.report.lost_images == []


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
    lay_out(tmp_path, {"data.yaml": "train: [train.json, more.json]\nimages: photos\nnames: [cat, dog]\n"})
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "b.png", "c.png", "z.png"]
    assert [x.classes.tolist() for x in dataset.labels] == [[0], [1, 0], [], [1]]


# ---- Errors: each names the file and the thing

TRAIN = "train: images/train\n"
PAIR = "names: [cat, dog]\n"


@pytest.mark.parametrize(
    ("base", "files", "words"),
    [
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: csv"}, ["data.yaml", "format 'csv'", "yolo, voc, coco"]),
        (as_yolo, {"data.yaml": TRAIN}, ["data.yaml", "`names` is missing"]),
        (as_yolo, {"data.yaml": TRAIN + "names: []"}, ["data.yaml", "`names` is missing"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "nc: 3"}, ["data.yaml", "nc is 3", "2 entries"]),
        (as_yolo, {"data.yaml": TRAIN + "names: [cat, dog, cat]"}, ["data.yaml", "`names`", "'cat' twice"]),
        (as_yolo, {"data.yaml": TRAIN + "names: {0: cat, 2: dog}"}, ["data.yaml", "`names`", "keys 0 to 1"]),
        (as_yolo, {"data.yaml": TRAIN + "names: {a: cat, b: dog}"}, ["data.yaml", "`names`", "keys 0 to 1"]),
        (as_yolo, {"data.yaml": PAIR}, ["data.yaml", "train, val, test"]),
        (as_yolo, {"data.yaml": PAIR + "train: []"}, ["data.yaml", "train, val, test"]),
        (as_yolo, {"data.yaml": "val: images/train\n" + PAIR}, ["data.yaml", "`train` is missing", "it has val"]),
        (as_yolo, {"data.yaml": "path: nowhere\n" + TRAIN + PAIR}, ["data.yaml", "path 'nowhere'"]),
        (as_yolo, {"data.yaml": "train: images/trian\n" + PAIR}, ["data.yaml", "train refers to", "images/trian"]),
        (as_yolo, {"data.yaml": f"train: [images/train, gone]\n{PAIR}"}, ["data.yaml", "train refers to", "gone"]),
        (as_yolo, {"data.yaml": "- images/train"}, ["data.yaml", "expected a map"]),
        (as_yolo, {"data.yaml": ""}, ["data.yaml", "expected a map"]),
        (as_yolo, {"data.yaml": "names: [cat"}, ["data.yaml", "not valid YAML", "line 1"]),
        (as_yolo, {"none/": "", "data.yaml": "train: none\n" + PAIR}, ["data.yaml", "none", "no image file"]),
        (as_yolo, {"l.txt": "./gone.png", "data.yaml": "train: l.txt\n" + PAIR}, ["data.yaml", "all 1 were left", "gone.png"]),
        (as_yolo, {"l.txt": "\n", "data.yaml": "train: l.txt\n" + PAIR}, ["data.yaml", "l.txt", "no image file"]),
        (as_yolo, {"labels/train/c.txt": "2 .5 .5 .1 .1"}, ["images/train/c.png", "class 2", "2 names"]),
        (as_voc, {"ImageSets/Main/train.txt": ""}, ["train.txt", "no image file"]),
        (as_voc, {"data.yaml": "train: ImageSets/Main/train.txt\nnames: [cat]"}, ["b.xml: object 1", "'dog'", "['cat']"]),
        (as_coco, {"data.yaml": "train: train.json\nimages: photos\nnames: [cat]"}, ["train.json: annotation 2", "'dog'"]),
        (as_coco, {"train.json": "{"}, ["train.json", "not a COCO json"]),
        (as_coco, {"train.json": "[]"}, ["train.json", "not a COCO json"]),
        (as_coco, {"train.json": '{"images": []}'}, ["train.json", "not a COCO json", "categories"]),
        (as_coco, {"train.json": '{"images": {}, "categories": []}'}, ["train.json", "not a COCO json", "images"]),
        (as_coco, {"data.yaml": "train: gone.json"}, ["gone.json", "no such file"]),
        (as_coco, {"data.yaml": "train: gone.json\nnames: [cat]"}, ["data.yaml", "train refers to", "gone.json"]),
        (as_yolo, {"data.yaml": TRAIN + "names: cat"}, ["data.yaml", "`names`", "'cat'"]),
        (as_yolo, {"data.yaml": TRAIN + "names: 3"}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": "path: 5\n" + TRAIN + PAIR}, ["data.yaml", "path"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: coco"}, ["images/train"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: voc"}, ["data.yaml", "images/train", "ImageSets/Main/train.txt"]),
        (as_yolo, {"l.txt": "a", "data.yaml": "train: l.txt\nformat: voc\n" + PAIR}, ["JPEGImages"]),
        (as_yolo, {"data.yaml": "train: images/train/a.png\n" + PAIR}, ["images/train/a.png"]),
        (as_coco, {"train.json": '{"images": [{"id": 1}], "categories": []}'}, ["train.json", "file_name"]),
        (as_coco, {"train.json": '{"images": [], "categories": [{"id": 1}]}', "data.yaml": "train: train.json"},
            ["train.json", "name"]),
    ],
    ids=lambda x: x.__name__ if callable(x) else x[-1] if isinstance(x, list) else "",
)  # fmt: skip
def test_errors(tmp_path: Path, base: Callable[[Path], None], files: dict[str, str], words: list[str]) -> None:
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


def test_folder_that_says_nothing(tmp_path: Path) -> None:
    lay_out(tmp_path, {"ImageSets/Main/train.txt": "a"})  # but no Annotations
    with pytest.raises(InputError, match=f"{tmp_path}: this folder holds neither"):
        DatasetFile.read(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "0 .5 .5 .2 0\n",
            ["data.yaml", "no usable box in val", "3 images", "labels/train/a.txt, line 1: zero width or height"],
        ),
        ("\n", ["data.yaml", "no usable box in val (3 images)"]),
        ("9 .5 .5 .2 .2\n", ["a.png", "class 9"]),
    ],
)
def test_data_module_refuses_labels_of_no_use(tmp_path: Path, line: str, words: list[str]) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {f"labels/train/{stem}.txt": line for stem in SCENES})
    lay_out(tmp_path, {"data.yaml": "val: images/train\n" + PAIR})
    with pytest.raises(InputError) as caught:
        DetectionData(str(tmp_path), image_size=64, workers=0).setup("validate")
    assert [word for word in words if word not in str(caught.value)] == []


# ---- Bad boxes are dropped and named, their image stays

GOOD_FIRST, GOOD_LAST = "0 0.5 0.5 0.5 0.5", "1 0.25 0.25 0.125 0.125"
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
        ("0 .50 .50 .50 .50", "duplicate of an earlier line"),
    ],
)
def test_bad_yolo_line(tmp_path: Path, line: str, problem: str) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/c.txt": f"{GOOD_FIRST}\n\n{line}\n{GOOD_LAST}\n"})
    dataset = load(tmp_path)
    assert dataset.report.faults == [Fault(str(tmp_path / "labels/train/c.txt"), "line 3", problem)]
    assert (dataset.report.images, dataset.report.boxes) == (3, 5)
    assert dataset.labels[2].boxes.tolist() == [[16, 16, 48, 48], [12, 12, 20, 20]]  # of 64 x 64 pixels
    assert dataset.labels[2].classes.tolist() == [0, 1]


def test_several_bad_lines_in_several_files(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/b.txt": "x\n0 2 2 2 2\n", "labels/train/c.txt": f"0\n{GOOD_FIRST}\n{GOOD_FIRST}\n"})
    report = load(tmp_path).report
    assert [(Path(f.file).name, f.where) for f in report.faults] == [
        ("b.txt", "line 1"),
        ("b.txt", "line 2"),
        ("c.txt", "line 1"),
        ("c.txt", "line 3"),
    ]
    assert report == DataReport(3, 2, background=1, faults=report.faults), "b.png stays, as background"


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
        ("<object><name>dog</name><bndbox/></object>", "object 2 (dog)", "missing or non-finite coordinate"),
        ("<object/>", "object 2 ()", "missing or non-finite coordinate"),
    ],
)
def test_bad_voc_object(tmp_path: Path, item: str, where: str, problem: str) -> None:
    as_voc(tmp_path)
    lay_out(tmp_path, {"Annotations/a.xml": voc_xml(voc_object("cat", 1, 2, 11, 22), item, voc_object("dog", 0.5, 0, 9, 9))})
    dataset = load(tmp_path)
    assert dataset.report.faults == [Fault(str(tmp_path / "Annotations/a.xml"), where, problem)]
    assert dataset.report.images == 3
    assert dataset.labels[0].boxes.tolist() == [[1, 2, 11, 22], [0.5, 0, 9, 9]]
    assert dataset.labels[0].classes.tolist() == [0, 1]


MISSING = "missing or non-finite coordinate"


@pytest.mark.parametrize(
    ("annotation", "where", "problem"),
    [
        ({"bbox": [5, 5, 0, 9]}, "annotation 102 (cat)", "zero or negative width or height"),
        ({"bbox": [5, 5, 9, -1], "category_id": 3}, "annotation 102 (dog)", "zero or negative width or height"),
        ({"bbox": []}, "annotation 102 (cat)", MISSING),
        ({"bbox": None}, "annotation 102 (cat)", MISSING),
        ({"bbox": [5, 5, 9, float("nan")]}, "annotation 102 (cat)", MISSING),
        ({"image_id": 99}, "annotation 102", "its image 99 is not listed"),
        ({"bbox": [5, 5, 9]}, "annotation 102 (cat)", MISSING),
        ({"bbox": ["left", 5, 9, 9]}, "annotation 102 (cat)", MISSING),
        ({"bbox": [None, 5, 9, 9]}, "annotation 102 (cat)", MISSING),
    ],
)
def test_bad_coco_annotation(tmp_path: Path, annotation: dict[str, Any], where: str, problem: str) -> None:
    as_coco(tmp_path, coco_with([{}, annotation, {"category_id": 3, "bbox": [0.5, 0, 8.5, 9]}]))
    dataset = load(tmp_path)
    assert dataset.report.faults == [Fault(str(tmp_path / "train.json"), where, problem)]
    assert dataset.report.images == 3
    assert dataset.labels[0].boxes.tolist() == [[10, 20, 40, 30], [0.5, 0, 9, 9]]
    assert dataset.labels[0].classes.tolist() == [0, 1]


@pytest.mark.parametrize("key", ["image_id", "category_id"])
def test_coco_annotation_without_a_key_names_the_file(tmp_path: Path, key: str) -> None:
    content = coco_with([{}])
    del content["annotations"][0][key]
    as_coco(tmp_path, content)
    try:
        where = str(load(tmp_path).report.faults[0])
    except InputError as e:
        where = str(e)
    assert "train.json" in where
    assert "annotation 101" in where


# ---- Bad images are dropped and named


def spoil(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "text":
        path.write_text("this is no image")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut off":
        path.write_bytes(path.read_bytes()[:40])
    else:
        save(path, picture(*map(int, how.split("x"))))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("text", "not a readable image ("),
        ("empty", "not a readable image ("),
        ("cut off", "not a readable image ("),
        ("9x60", "image too small (60x9 px, least 10)"),
        ("60x9", "image too small (9x60 px, least 10)"),
        ("missing", "no such image file"),
    ],
)
@pytest.mark.parametrize("base", [as_yolo, as_voc, as_coco])
def test_bad_image(tmp_path: Path, base: Callable[[Path], None], how: str, why: str) -> None:
    base(tmp_path)
    bad = next(tmp_path.rglob("b.png"))
    spoil(bad, how)
    if base is as_yolo:  # a folder does not know what is missing from it, a list does
        lay_out(tmp_path, {"l.txt": "".join(f"./images/train/{k}.png\n" for k in SCENES), "data.yaml": "train: l.txt\n" + PAIR})
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "c.png"]
    (lost,) = dataset.report.lost_images
    assert lost.problem.startswith(why)
    assert (Path(lost.file).stem, lost.where) == ("b", "")
    if base is not as_voc or how != "missing":  # VOC's lists do not say the suffix
        assert Path(lost.file) == bad
    assert dataset.report == DataReport(2, 1, background=1, lost_images=[lost])


def test_ten_pixels_are_enough(tmp_path: Path) -> None:
    assert image_sizes([save(tmp_path / "a.png", picture(10, 10))]) == [(10, 10)]


def test_broken_xml_drops_the_image(tmp_path: Path) -> None:
    as_voc(tmp_path)
    lay_out(tmp_path, {"Annotations/b.xml": "<annotation><object>"})
    dataset = load(tmp_path)
    assert files_of(dataset) == ["a.png", "c.png"]
    (lost,) = dataset.report.lost_images
    assert lost.file == str(tmp_path / "Annotations/b.xml")
    assert lost.problem.startswith("not valid XML (")


def test_report_in_words() -> None:
    faults = [Fault(f"{k}.txt", "line 1", "negative value") for k in range(3)]
    report = DataReport(7, 9, background=2, unlabelled=1, faults=faults, lost_images=[Fault("x.png", "", "no such image file")])
    assert report.lines("val", most=3) == [
        "val: 7 images, 9 boxes, 2 images without objects (1 without a label file), 3 boxes dropped, 1 images dropped",
        "  left out: x.png: no such image file",
        "  left out: 0.txt, line 1: negative value",
        "  left out: 1.txt, line 1: negative value",
        "  ... and 1 more, all in dropped.txt",
    ]
    assert len(report.lines("val", most=4)) == 5
    assert DataReport(7, 9).lines("train") == ["train: 7 images, 9 boxes"]


# ---- Single class


def test_single_class(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"labels/train/c.txt": "55 .5 .5 .1 .1"})
    dataset = DatasetFile.read(str(tmp_path)).open("train")
    dataset.merge_classes()
    dataset.check_classes()
    assert dataset.names == ["item"]
    assert dataset.class_counts().tolist() == [4]
    assert dataset[1].classes.tolist() == [0, 0]


def test_single_class_keeps_a_single_name(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"data.yaml": TRAIN + "names: [cell]"})
    dataset = DatasetFile.read(str(tmp_path)).open("train")
    dataset.merge_classes()
    assert dataset.names == ["cell"]
    assert dataset.class_counts().tolist() == [3]


def test_class_counts_has_a_place_for_absent_classes(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    lay_out(tmp_path, {"data.yaml": TRAIN + "names: [cat, dog, cow, eel]"})
    assert load(tmp_path).class_counts().tolist() == [2, 1, 0, 0]


# ---- Image files

# The picture as shown, from the picture as stored, by EXIF orientation.
SHOWN: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}
STORED = np.kron(picture(3, 5, 1), np.ones((8, 8, 1), np.uint8))  # 24 x 40 in even JPEG blocks
SUFFIXES = {"jpg": {"quality": 100, "subsampling": 0}, "tiff": {}, "png": {}, "webp": {"lossless": True}}


def turned(path: Path, orientation: int, stored: np.ndarray = STORED) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(path, exif=exif, **SUFFIXES[path.suffix[1:]])
    return path


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_exif_orientation_of_pixels(tmp_path: Path, suffix: str, orientation: int) -> None:
    image = read_image(turned(tmp_path / f"x.{suffix}", orientation))
    expected = SHOWN[orientation](STORED)
    assert image.shape == expected.shape
    assert np.abs(image.astype(int) - expected).max() <= (2 if suffix == "jpg" else 0)


@pytest.mark.parametrize(
    ("suffix", "orientation"),
    [(suffix, o) for suffix in SUFFIXES for o in SHOWN],
)
def test_exif_orientation_of_size(tmp_path: Path, suffix: str, orientation: int) -> None:
    """Four orientations lie on their side: 24 rows of 40 pixels are shown as 40 rows of 24."""
    assert image_size(turned(tmp_path / f"x.{suffix}", orientation)) == ((40, 24) if orientation > 4 else (24, 40))


def test_boxes_of_a_turned_image(tmp_path: Path) -> None:
    """Stored 100 wide and 50 high, shown 50 wide and 100 high; the label file speaks of what is shown."""
    stored = np.zeros((50, 100, 3), np.uint8)
    stored[30:50, 0:10] = 255  # turned clockwise by orientation 6: rows 0 to 10, columns 50 - 50 = 0 to 50 - 30 = 20
    as_yolo(tmp_path)
    turned(tmp_path / "images/train/a.png", 6, stored)
    lay_out(tmp_path, {"labels/train/a.txt": "0 0.2 0.05 0.4 0.1"})
    sample = load(tmp_path)[0]
    np.testing.assert_allclose(sample.boxes, [[0, 0, 20, 10]], atol=1e-4)
    assert sample.image.shape == (100, 50, 3)
    assert cv2.boundingRect(sample.image[..., 0]) == (0, 0, 20, 10)


GREY = STORED[..., 0]
ALPHA = np.kron(picture(3, 5, 2)[..., 0], np.ones((8, 8), np.uint8))


def of(array: np.ndarray) -> Image.Image:
    return Image.fromarray(array)


@pytest.mark.parametrize(
    ("suffix", "file", "options"),
    [
        ("png", of(STORED), {}),
        ("bmp", of(STORED), {}),
        ("jpg", of(STORED), {"quality": 100, "subsampling": 0}),
        ("mpo", of(STORED), {"quality": 100, "subsampling": 0}),
        ("webp", of(STORED), {"lossless": True}),
        ("tif", of(STORED), {"compression": "tiff_lzw"}),
        ("png", of(GREY), {}),
        ("jpg", of(GREY), {"quality": 100}),
        ("tif", of(GREY), {}),
        ("png", of(GREY > 127), {}),
        ("tif", of(GREY > 127), {}),
        ("png", of(STORED).quantize(8), {}),
        ("png", of(STORED).quantize(8), {"transparency": 3}),
        ("bmp", of(STORED).quantize(8), {}),
        ("jpg", of(STORED).convert("CMYK"), {"quality": 100, "subsampling": 0}),
        ("tif", of(STORED).convert("CMYK"), {}),
        ("png", of(np.dstack((STORED, ALPHA))), {}),
        ("webp", of(np.dstack((STORED, ALPHA))), {"lossless": True, "exact": True}),
        ("png", of(np.dstack((GREY, ALPHA))), {}),
        ("tif", of(np.dstack((STORED, ALPHA))), {}),
    ],
    ids=lambda x: getattr(x, "mode", None),
)
def test_kinds_of_images(tmp_path: Path, suffix: str, file: Image.Image, options: dict[str, Any]) -> None:
    """The oracle is Pillow, on the picture before it went through a file; alpha is dropped, not blended."""
    path = tmp_path / f"x.{suffix}"
    file.save(path, **options)
    image = read_image(path)
    assert (image.dtype, image.shape) == (np.uint8, (24, 40, 3))
    expected = np.asarray(file.convert("RGB")).astype(int)
    assert len(np.unique(expected)) > 1
    assert np.abs(image - expected).max() <= (2 if suffix in ("jpg", "mpo") else 0)
    assert image_size(path) == (24, 40)


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("stored", [GREY, STORED], ids=["grey", "colour"])
def test_16_bit(tmp_path: Path, suffix: str, stored: np.ndarray) -> None:
    """From 0..65535 to 0..255: 257 v becomes v."""
    path = tmp_path / f"x.{suffix}"
    assert cv2.imwrite(str(path), bgr(stored) * np.uint16(257))
    assert np.array_equal(read_image(path), np.broadcast_to(stored.reshape(24, 40, -1), (24, 40, 3)))
    assert image_size(path) == (24, 40)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize(
    "exif", [b"garbage!", b"II*\0", b"II*\0\xff\xff\xff\xff", b""], ids=["garbage", "cut", "astray", "empty"]
)
def test_damaged_exif_is_not_followed(tmp_path: Path, suffix: str, exif: bytes) -> None:
    """The picture itself is whole."""
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(STORED).save(path, exif=b"Exif\0\0" + exif, **SUFFIXES[suffix])
    assert read_image(path).shape == (24, 40, 3)
    assert image_sizes([path]) == [(24, 40)]


def test_unreadable_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("no image")
    with pytest.raises(InputError, match=r"x\.png: this image cannot be decoded"):
        read_image(tmp_path / "x.png")


def test_find_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.JPG", "a.png", "deep/c.webp", "notes.txt", "d.jpg.bak"):
        lay_out(tmp_path, {name: ""})
    (tmp_path / "folder.png").mkdir()

    def found(source: str | Path) -> list[str]:
        return [p.name for p in find_images(source)]

    assert found(tmp_path) == ["a.png", "b.JPG", "c.webp"]
    assert found(tmp_path / "notes.txt") == ["notes.txt"], "what is named outright is tried"
    assert found(tmp_path / "*.JPG") == ["b.JPG"]
    assert found(tmp_path / "*.txt") == []
    monkeypatch.chdir(tmp_path)
    assert found("deep/*") == ["c.webp"]
    assert found("gone") == []


# ---- Real data


def real(name: str) -> Path:
    folder = SHARED / "data" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set BOLTBOX_SHARED to the folder that holds data/{name}")
    return folder


@pytest.mark.parametrize(
    ("split", "images", "counts", "faults"),
    [  # Platelets, RBC, WBC
        ("train", 205, [209, 2381, 214], [("BloodImage_00343.xml", "object 4 (RBC)")]),
        ("val", 87, [83, 967, 87], [("BloodImage_00338.xml", "object 13 (RBC)")]),
        ("test", 72, [69, 805, 71], []),
    ],
)
def test_bccd(split: str, images: int, counts: list[int], faults: list[tuple[str, str]]) -> None:
    dataset = load(real("bccd") / "BCCD", split)
    assert dataset.names == ["Platelets", "RBC", "WBC"]
    assert len(dataset) == images
    assert dataset.class_counts().tolist() == counts
    assert dataset.report.boxes == sum(counts) == {"train": 2804, "val": 1137, "test": 945}[split]
    assert [(Path(f.file).name, f.where) for f in dataset.report.faults] == faults
    assert dataset.report.lost_images == []


def test_coco128() -> None:
    root = real("coco128_val128")
    report = load(root, "val").report
    assert report == DataReport(128, 898)
    report = load(root, "train").report
    # 941 label lines less the 12 of the two files, 000000000656 and 000000000659, whose images are not there
    assert report == DataReport(128, 929, background=2, unlabelled=2)


def test_publaynet_as_coco_equals_yolo(tmp_path: Path) -> None:
    """Its json speaks of all twenty images; they lie in two folders."""
    root = real("publaynet20")
    content = {
        "path": str(root),
        "train": ["images/train", "images/val"],
        "names": ["text", "title", "list", "table", "figure"],
    }
    (tmp_path / "yolo.yaml").write_text(yaml.safe_dump(content))
    as_coco_too = {"path": str(root), "train": "samples.coco.json", "images": ["images/train", "images/val"]}
    (tmp_path / "coco.yaml").write_text(yaml.safe_dump(as_coco_too))
    yolo, coco = load(tmp_path / "yolo.yaml"), load(tmp_path / "coco.yaml")
    assert coco.names == yolo.names == content["names"]
    assert coco.report == yolo.report == DataReport(20, 193)
    assert coco.class_counts().tolist() == [137, 34, 7, 6, 9]
    theirs = dict(zip(files_of(yolo), yolo.labels, strict=True))
    for name, labels in zip(files_of(coco), coco.labels, strict=True):
        assert labels.classes.tolist() == theirs[name].classes.tolist()
        np.testing.assert_allclose(labels.boxes, theirs[name].boxes, rtol=0, atol=2e-3)  # six decimals in the label files
        assert all(len(parts) > 0 for parts in labels.polygons)


def test_real_faults() -> None:
    """FAULTS.tsv counts them: boxes of no size 3 and 1, one empty and one missing label file, labels without their image."""
    root = real("real_faults")
    train, val = load(root).report, load(root, "val").report
    assert (train.images, train.background, train.unlabelled, len(train.faults)) == (10, 2, 1, 3)
    assert (val.images, val.background, val.unlabelled, len(val.faults)) == (4, 0, 0, 1)
    assert {f.problem for f in train.faults + val.faults} == {"zero width or height"}
    assert train.lost_images == val.lost_images == []
