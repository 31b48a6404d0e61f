"""Files that are not what they should be: each command ends soon, with one sentence and exit code
2."""

import json
import os
import signal
from pathlib import Path

import pytest
from made_datasets import PAIR, as_coco, as_voc, as_yolo, coco_with, lay_out, load
from made_runs import column, type_line

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.images import image_sizes

ALIASES = "a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0]\n" + "".join(
    f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 9)
)
LONG = "a" * 300  # a file system takes 255
SPLITS = {"users": "/etc/passwd", "zero": "../zero.txt", "device": "/dev/zero", "pipe": "../pipe"}
BEYOND = "b/" * 3000 + "c"  # the system takes 4096 in all


@pytest.fixture(autouse=True)
def _alarm():
    """What waits for ever is a failure, not a suite that hangs."""

    def late(*_):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def data(here):
    """A current folder with a YOLO set, a VOC set, a COCO set, and hostile files beside them."""
    as_yolo(here / "yolo")
    as_voc(here / "voc")
    as_coco(here / "coco")
    files = {
        "deep.yaml": f"train: {'[' * 3000}{']' * 3000}\n{PAIR}",
        "long.txt": f"{LONG}.png\n{BEYOND}.png\n",
        "file": "no folder",
        "run/checkpoints": "no folder",
        "yolo/classes.yaml": "train: images/train\nnc: 1000000000\n",
        "yolo/aliases.yaml": f"{ALIASES}train: *a8\n{PAIR}",
        "voc/long.yaml": f"train: ../long.txt\nformat: voc\n{PAIR}",
    }
    for name, train in SPLITS.items():
        files[f"yolo/{name}.yaml"] = f"train: {train}\n{PAIR}"
    lay_out(here, files)
    (here / "latin.yaml").write_bytes(b"train: yolo/images/train\nnames: [caf\xe9, dog]\n")
    (here / "zero.txt").write_bytes(b"./images/train/a.png\n\0\n")
    os.mkfifo(here / "pipe")
    return here


DOCTOR = "doctor --run new --data.dataset"
FIT = "fit --data.dataset yolo/data.yaml"
LINES = {  # and what the sentence names
    f"{DOCTOR} deep.yaml": "deep.yaml: not valid YAML",
    f"{DOCTOR} latin.yaml": "latin.yaml: this is not a text file",
    f"{DOCTOR} yolo/zero.yaml": "zero.txt: this is not a text file",
    "anchors --run new --data.dataset yolo/users.yaml": "no usable box in train",
    f"{DOCTOR} yolo/device.yaml": "/dev/zero: is not a regular file",
    f"{DOCTOR} yolo/pipe.yaml": "pipe: is not a regular file",
    f"{DOCTOR} yolo/classes.yaml": "yolo/classes.yaml: `nc` is 1000000000",
    f"{DOCTOR} yolo/aliases.yaml": "yolo/aliases.yaml: not valid YAML",
    "fit --config yolo/aliases.yaml": "yolo/aliases.yaml: not valid YAML",
    "predict --ckpt_path best --source long.txt": "long.txt, line 1",
    f"predict --ckpt_path best --source {BEYOND}": "b/b/",
    "import-hyp /proc/self/environ": "/proc/self/environ: this is not a text file",
    f"{FIT} --run file/below": "run file/below: ",
    "fit --ckpt_path last --run run": "no checkpoint in run/checkpoints",
    f"{FIT} --model.start.weights {LONG}": "aaa",
    f"report {LONG}": "File name too long",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:60])
def test_one_sentence(data, refused, line):
    told = refused(line)
    assert len(told) < 2500
    assert LINES[line] in told
    assert not (data / "new").exists()


def test_process_substitution_is_a_config_still(data, capfd):
    """`--config <(...)`: a pipe that the shell writes into."""
    reader, writer = os.pipe()
    os.write(writer, b"data: {image_size: -7}\n")
    os.close(writer)
    with pytest.raises(SystemExit):
        type_line(f"{FIT} --config /dev/fd/{reader}")
    os.close(reader)
    assert "-7" in capfd.readouterr().err


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
    with pytest.raises(SystemExit):
        type_line(f"{DOCTOR} coco/data.yaml --fix fixed")
    assert len(load(data / "fixed").labels.boxes) == 2
    assert (data / "fixed/repairs.txt").read_text().count("dropped") >= 5


def test_images_that_are_no_files(data):
    """A pipe would be waited for."""
    os.mkfifo(data / "yolo/images/train/pipe.png")
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
    assert image_sizes([data / "pipe"]) == ["no regular file"]


def test_json_nested_too_deep(data, refused):
    text = json.dumps(coco_with([{}]))
    lay_out(data / "coco", {"train.json": f'{text[:-1]}, "info": {"[" * 100_000}{"]" * 100_000}}}'})
    assert "train.json: not a COCO json file" in refused(f"{DOCTOR} coco/data.yaml")


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
