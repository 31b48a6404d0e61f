"""Labels and images that are not what they should be, and are repaired or left out; what is refused
is in test_messages.py."""

import json
import os
from pathlib import Path

import pytest
from made_datasets import PAIR, as_coco, as_yolo, coco_with, lay_out, load
from made_runs import column, findings_of

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.images import image_sizes

pytestmark = pytest.mark.usefixtures("ends_soon")
LONG = "a" * 300  # a file system takes 255
BEYOND = f"{'b' * 200}/" * 21 + "c"  # the system takes 4096 in all


@pytest.fixture
def data(here):
    """A current folder with a YOLO set and a COCO set."""
    as_yolo(here / "yolo")
    as_coco(here / "coco")
    return here


def test_json_of_any_numbers_is_repaired(data):
    """Integers beyond float, NaN and Infinity, lists within lists."""
    huge = 10**400
    nan = float("nan")
    annotations = [
        {},
        {"id": huge, "area": huge, "note": nan},
        {"bbox": [1, 1, huge, 5]},
        {"bbox": [huge, 1, 5, 5]},
        {"bbox": [1, 1, float("inf"), nan]},
        {"bbox": [3, 3, 5, 5], "segmentation": [[huge] * 6], "iscrowd": huge},
        {"category_id": huge},
        {"image_id": huge},
        {"image_id": nan},
    ]
    content = coco_with(annotations)
    content["images"][0] |= {"height": huge, "width": float("inf")}
    as_coco(data / "coco", content)
    findings_of("coco", "new", "--fix fixed")
    assert len(load(data / "fixed").labels.boxes) == 2
    assert (data / "fixed/repairs.txt").read_text().count("dropped") >= 5


def test_images_that_are_no_files(data):
    """A pipe would be waited for."""
    pipe = data / "yolo/images/train/pipe.png"
    os.mkfifo(pipe)
    (data / "yolo/images/train/device.png").symlink_to("/dev/zero")
    (data / "yolo/images/train/round.png").symlink_to("round.png")
    names = ("a", "pipe", "device", "round", LONG)
    lines = "".join(f"./images/train/{name}.png\n" for name in names)
    lay_out(data / "yolo", {"all.txt": lines, "all.yaml": f"train: all.txt\n{PAIR}"})
    dataset = load(data / "yolo/all.yaml")
    assert [Path(f).name for f in dataset.files] == ["a.png"]
    lost = {Path(f.file).stem[:6]: f.problem for f in dataset.faults}
    assert lost == {
        "pipe": "no regular file",
        "device": "no regular file",
        "round": "no such image file",
        "aaaaaa": "no such image file",
    }
    assert set(column(dataset.faults, "kind")) == {"unusable_image"}
    assert len(load(data / "yolo").files) == 3
    assert image_sizes([pipe]) == ["no regular file"]


def test_json_nested_too_deep(data, refused):
    text = json.dumps(coco_with([{}]))
    lay_out(data / "coco", {"train.json": f'{text[:-1]}, "info": {"[" * 100_000}{"]" * 100_000}}}'})
    assert "train.json: not a COCO json file" in refused("doctor --data.dataset coco")


def test_names_that_no_file_can_have(data):
    content = coco_with([{}])
    names = (f"{LONG}.png", f"{BEYOND}.png", "a\0b")
    for image, name in zip(content["images"], names, strict=False):
        image["file_name"] = name
    as_coco(data / "coco", content)
    dataset = DatasetFile.read("coco").open("train", strict=False)
    problems = {fault.problem for fault in dataset.faults}
    assert problems == {"no such image file"}
    assert not dataset.files
