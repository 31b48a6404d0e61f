"""The repaired copy: nothing is wrong with it, what was sound is still in it, and the original is
as it was."""

import contextlib
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from made_datasets import lay_out, picture, save, voc_object
from PIL import Image

import cli
from boltbox.detector.commands.doctor.examine import diagnose as examine
from boltbox.detector.commands.doctor.examine import open_splits
from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.repair import check_folder, repair
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.system.errors import InputError

HEIGHT = 40
WIDTH = 60
HEALED = {  # warnings that a repair does away with
    "duplicate_image",
    "duplicate_across_splits",
    "duplicate_box",
    "box_past_frame",
    "orphan_label_file",
    "orphan_annotation",
}
TRAIN = ("good", "clipped", "cut", "tiny", "liar", "endless", "twin", "leak", "foreign")
Box = tuple[str, float, float, float, float]  # class name, xyxy in pixels
GOOD: Box = ("cat", 6, 4, 24, 20)
# of the images that stay; dropped or changed boxes are added below
LABELS: dict[str, list[Box]] = {
    "good": [GOOD, ("dog", 30, 10, 45, 30)],
    "clipped": [GOOD],
    "liar": [("dog", 12, 8, 36, 28)],
    "endless": [GOOD],
    "foreign": [("dog", 6, 8, 24, 28)],
    "first": [GOOD],
    "second": [("dog", 30, 10, 45, 30)],
}


def spoiled_images(train: Path, val: Path) -> None:
    """Images of every kind that a repair has to do with; the names say which."""
    for k, stem in enumerate(TRAIN):
        save(
            train / f"{stem}.{'jpg' if stem in ('cut', 'endless') else 'png'}",
            picture(HEIGHT, WIDTH, k),
        )
    for k, stem in enumerate(("first", "second"), len(TRAIN)):
        save(val / f"{stem}.png", picture(HEIGHT, WIDTH, k))
    save(train / "tiny.png", picture(9, WIDTH))
    (train / "liar.png").rename(train / "liar.jpg")
    (train / "cut.jpg").write_bytes((train / "cut.jpg").read_bytes()[:-300])
    (train / "endless.jpg").write_bytes((train / "endless.jpg").read_bytes()[:-2])
    (train / "twin.png").write_bytes((train / "good.png").read_bytes())
    (train / "leak.png").write_bytes((val / "first.png").read_bytes())
    Image.fromarray(picture(HEIGHT, WIDTH, 99)).save(train / "foreign.png", format="GIF")


def as_yolo(root: Path) -> None:
    def line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
        cxcywh = (
            (x1 + x2) / 2 / WIDTH,
            (y1 + y2) / 2 / HEIGHT,
            (x2 - x1) / WIDTH,
            (y2 - y1) / HEIGHT,
        )
        return " ".join(f"{v:.9g}" for v in (("cat", "dog").index(name), *cxcywh)) + "\n"

    spoiled_images(root / "images/train", root / "images/val")
    # shares the labels of good.png
    save(root / "images/train/good.bmp", picture(HEIGHT, WIDTH, 77))
    for stem in (*TRAIN, "first", "second"):
        split = "train" if stem in TRAIN else "val"
        lay_out(
            root,
            {f"labels/{split}/{stem}.txt": "".join(line(*box) for box in LABELS.get(stem, [GOOD]))},
        )
    bad = "0 .5 .5 0 .5\n0 nan .5 .5 .5\ncat\n7 .5 .5 .1 .1\n" + line(*GOOD)
    with open(root / "labels/train/clipped.txt", "a") as file:
        file.write(bad + line("dog", -10, 10, 20, 50))
    lay_out(root, {"labels/train/orphan.txt": "0 .5 .5 .1 .1\n"})
    lay_out(root, {"data.yaml": "train: images/train\nval: images/val\nnames: [cat, dog]\n"})


def as_voc(root: Path) -> None:
    spoiled_images(root / "JPEGImages", root / "JPEGImages")
    for stem in (*TRAIN, "first", "second"):
        objects = [voc_object(*box) for box in LABELS.get(stem, [GOOD])]
        size = f"<filename>{stem}.png</filename><size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
        if stem == "clipped":
            size = f"<filename>other.png</filename><size><width>{HEIGHT}</width><height>{WIDTH}</height></size>"
            objects += [
                voc_object("cat", 5, 5, 5, 9),
                voc_object("cat", "nan"),
                voc_object("cow"),
                voc_object(*GOOD),
            ]
            objects += [voc_object("dog", -10, 10, 20, 50), voc_object("dog", 70, 10, 80, 20)]
            objects += [voc_object("dog", 1, 1, 9, 9, "<difficult>1</difficult>")]
        lay_out(
            root, {f"Annotations/{stem}.xml": f"<annotation>{size}{''.join(objects)}</annotation>"}
        )
    lay_out(root, {"Annotations/orphan.xml": f"<annotation>{voc_object('cat')}</annotation>"})
    lists = {
        "ImageSets/Main/train.txt": "\n".join(TRAIN),
        "ImageSets/Main/val.txt": "first\nsecond\n",
    }
    lay_out(
        root,
        {
            **lists,
            "data.yaml": "train: ImageSets/Main/train.txt\nval: ImageSets/Main/val.txt\nnames: [cat, dog]\n",
        },
    )


def as_coco(root: Path) -> None:
    def annotation(name: Any, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        return {
            "category_id": {"cat": 7, "dog": 3}.get(name, name),
            "bbox": [x1, y1, x2 - x1, y2 - y1],
        }

    spoiled_images(root / "images/train", root / "images/val")
    for split, stems in (("train", TRAIN), ("val", ("first", "second"))):
        images = []
        annotations = []
        for k, stem in enumerate(stems):
            (path,) = (root / "images" / split).glob(f"{stem}.*")
            entry = {
                "id": 10 * k,
                "file_name": path.name,
                "height": HEIGHT,
                "width": WIDTH,
                "license": 4,
            }
            found = [annotation(*box) for box in LABELS.get(stem, [GOOD])]
            if stem == "clipped":
                entry |= {"height": WIDTH, "width": HEIGHT}
                found += [
                    annotation("cat", 5, 5, 5, 9),
                    annotation(99, 5, 5, 9, 9),
                    annotation(*GOOD),
                    {"category_id": 7},
                ]
                found += [annotation("dog", -10, 10, 20, 50), annotation("dog", 70, 10, 80, 20)]
            images.append(entry)
            annotations += [{"image_id": 10 * k, **a} for a in found]
        annotations.append({"image_id": 12345, **annotation(*GOOD)})
        content = {
            "info": {"year": 2020},
            "images": images,
            "annotations": [{"id": k, **a} for k, a in enumerate(annotations)],
            "categories": [{"id": 3, "name": "dog"}, {"id": 7, "name": "cat"}],
        }
        lay_out(root, {f"{split}.json": json.dumps(content)})
    lay_out(root, {"data.yaml": "train: train.json\nval: val.json\nnames: [cat, dog]\n"})


def tree(root: Path) -> dict[str, str]:
    return {
        str(p.relative_to(root)): sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


def diagnose(source: Path) -> tuple[DatasetFile, dict[str, DetectionDataset], Diagnosis]:
    file = DatasetFile.read(str(source))
    datasets, _ = open_splits(file)
    return file, datasets, examine(file, datasets, 64)


def boxes(source: Path) -> dict[str, list[Box]]:
    """What training reads, by stem."""
    file = DatasetFile.read(str(source))
    found = {}
    for split in file.splits:
        dataset = file.open(split)
        for path, labels in zip(dataset.files, dataset.labels, strict=True):
            rows = np.column_stack((labels.classes, labels.boxes)).tolist()
            found[Path(path).name] = [
                (file.names[int(c)], *(round(v, 3) for v in box)) for c, *box in rows
            ]
    return found


FORMATS = {"yolo": as_yolo, "voc": as_voc, "coco": as_coco}


@pytest.mark.parametrize("kind", FORMATS)
def test_repaired_copy(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    copy = tmp_path / "deep/copy"
    FORMATS[kind](source)
    before = tree(source)
    file, datasets, diagnosis = diagnose(source)
    assert diagnosis.count("fault") >= 5
    assert {"damaged_image", "different_labels", "box_past_frame"} <= {
        f.kind for f in diagnosis.findings
    }
    done = repair(file, datasets, diagnosis, copy)
    assert tree(source) == before

    healed, sound, after = diagnose(copy)
    assert [f for f in after.findings if f.severity == "fault" or f.kind in HEALED] == []
    assert healed.format == ("yolo" if kind == "yolo" else "coco")
    assert healed.names == ["cat", "dog"]
    expected = {
        "good.png": LABELS["good"],
        "clipped.png": [GOOD, ("dog", 0, 10, 20, 40)],
        "liar.jpg": LABELS["liar"],
        "endless.jpg": LABELS["endless"],
        "foreign.png": LABELS["foreign"],
        "first.png": LABELS["first"],
        "second.png": LABELS["second"],
    }
    if kind == "yolo":  # good.bmp comes first in the alphabet
        expected["good.bmp"] = expected["good_2.png"] = expected.pop("good.png")
    assert boxes(copy) == expected

    originals = {Path(path).name: Path(path) for path in before}
    for path in sorted(copy.rglob("*.*")):
        if path.suffix in (".png", ".jpg", ".bmp"):
            name = {"good_2.png": "good.png"}.get(path.name, path.name)
            assert path.read_bytes() == (source / originals[name]).read_bytes()
    assert (copy / "repairs.txt").read_text().splitlines() == done
    for word in (
        "cut.jpg",
        "tiny.png",
        "twin.png",
        "leak.png",
        "clipped",
    ):
        assert any(word in line for line in done), word
    assert any("orphan" in line for line in done) == (kind != "coco")

    assert repair(healed, sound, after, tmp_path / "twice") == [], "nothing is left to do"
    once = tree(copy)
    twice = tree(tmp_path / "twice")
    del once["repairs.txt"], twice["repairs.txt"]
    assert once == twice


def test_coco_keeps_crowds_areas_and_polygons(tmp_path: Path) -> None:
    save(tmp_path / "source/images/a.png", picture(HEIGHT, WIDTH))
    triangle = [1.5, 2, 30, 2, 30, 20]
    box = {"image_id": 1, "category_id": 5, "bbox": [1.5, 2, 28.5, 18]}
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{**box, "area": 250.5, "segmentation": [triangle]}, {**box, "iscrowd": 1}],
        "categories": [{"id": 5, "name": "cat"}],
    }
    lay_out(tmp_path / "source", {"a.json": json.dumps(content), "data.yaml": "train: a.json\n"})
    repair(*diagnose(tmp_path / "source"), tmp_path / "copy")
    (labels,) = DatasetFile.read(str(tmp_path / "copy")).open("train").labels
    assert labels.crowd.tolist() == [False, True]
    assert labels.area.tolist() == [250.5, 28.5 * 18]
    assert [[part.ravel().tolist() for part in parts] for parts in labels.polygons] == [
        [triangle],
        [],
    ]


def test_coco_image_that_is_listed_twice(tmp_path: Path) -> None:
    save(tmp_path / "source/images/a.png", picture(HEIGHT, WIDTH))
    box = {"category_id": 1, "bbox": [1, 2, 30, 20]}
    content = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "a.png"}],
        "annotations": [
            {"image_id": 1, **box},
            {"image_id": 2, **box},
            {"image_id": 2, **box, "bbox": [5, 6, 7, 8]},
        ],
        "categories": [{"id": 1, "name": "cat"}],
    }
    lay_out(tmp_path / "source", {"a.json": json.dumps(content), "data.yaml": "train: a.json\n"})
    repair(*diagnose(tmp_path / "source"), tmp_path / "copy")
    assert boxes(tmp_path / "copy") == {"a.png": [("cat", 1, 2, 31, 22), ("cat", 5, 6, 12, 14)]}
    assert len(DatasetFile.read(str(tmp_path / "copy")).open("train")) == 1


def test_several_coco_files_become_one(tmp_path: Path) -> None:
    """Both use the same ids, for other images and other categories."""
    source = tmp_path / "source"
    for k in (1, 2):
        save(source / f"images/{k}.png", picture(HEIGHT, WIDTH, k))
        images = [{"id": 1, "file_name": f"{k}.png", "height": HEIGHT, "width": WIDTH}]
        categories = [
            {"id": 1, "name": "cat" if k == 1 else "dog"},
            {"id": 2, "name": "dog" if k == 1 else "cat"},
        ]
        annotations = [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 20]}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        lay_out(source, {f"{k}.json": json.dumps(content)})
    lay_out(source, {"data.yaml": "train: [1.json, 2.json]\nnames: [cat, dog]\n"})
    before = boxes(source)
    assert [name for rows in before.values() for name, *_ in rows] == ["cat", "dog"]
    repair(*diagnose(source), tmp_path / "copy")
    assert boxes(tmp_path / "copy") == before


def test_relative_and_absolute_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one split; a folder that is full is refused before any image is decoded."""
    monkeypatch.chdir(tmp_path)
    for k, place in enumerate(("source", "other")):
        save(tmp_path / place / f"images/{k}.png", picture(HEIGHT, WIDTH, k))
        lay_out(tmp_path / place, {f"labels/{k}.txt": "0 .5 .5 .5 .5\n"})
    folders = f"path: source\ntrain: [images, {tmp_path / 'other/images'}]\nnames: [cat]\n"
    lay_out(tmp_path, {"data.yaml": folders, "full/a": ""})
    repair(*diagnose(tmp_path / "data.yaml"), tmp_path / "copy")
    copied = DatasetFile.read(str(tmp_path / "copy")).open("train").files
    assert {Path(file).name for file in copied} == {"0.png", "1.png"}
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--data.dataset", "data.yaml", "--fix", "full", "--run", "report"])
    assert "full: the repaired copy needs a new or an empty folder" in capsys.readouterr().err
    assert not (tmp_path / "report/doctor.json").exists()


def test_splits_that_are_the_same_on_purpose(tmp_path: Path) -> None:
    save(tmp_path / "source/images/all/a.png", picture(HEIGHT, WIDTH))
    lay_out(tmp_path / "source", {"labels/all/a.txt": "0 .5 .5 .5 .5\n"})
    lay_out(
        tmp_path / "source", {"data.yaml": "train: images/all\nval: images/all\nnames: [cat]\n"}
    )
    repair(*diagnose(tmp_path / "source"), tmp_path / "copy")
    content = yaml.safe_load((tmp_path / "copy/data.yaml").read_text())
    assert (content["train"], content["val"]) == ("images/train", "images/val")
    file = DatasetFile.read(str(tmp_path / "copy"))
    assert len(file.open("train")) == len(file.open("val")) == 1


def test_training_split_is_not_emptied(tmp_path: Path) -> None:
    for split in ("train", "val"):
        save(tmp_path / f"source/images/{split}/a.png", picture(HEIGHT, WIDTH))
        lay_out(tmp_path / "source", {f"labels/{split}/a.txt": "0 .5 .5 .5 .5\n"})
    lay_out(
        tmp_path / "source", {"data.yaml": "train: images/train\nval: images/val\nnames: [cat]\n"}
    )
    (line,) = repair(*diagnose(tmp_path / "source"), tmp_path / "copy")
    assert line.startswith("kept the images of train")
    assert (tmp_path / "copy/images/train/a.png").is_file()


def test_an_image_of_two_splits_stays_in_one(tmp_path: Path) -> None:
    for k in range(3):
        save(tmp_path / f"source/images/{k}.png", picture(HEIGHT, WIDTH, k))
        lay_out(tmp_path / "source", {f"labels/{k}.txt": "0 .5 .5 .5 .5\n"})
    lists = {"train.txt": "./images/0.png\n./images/1.png\n", "val.txt": "./images/1.png\n"}
    lay_out(
        tmp_path / "source",
        {**lists, "data.yaml": "train: train.txt\nval: val.txt\nnames: [cat]\n"},
    )
    repair(*diagnose(tmp_path / "source"), tmp_path / "copy")
    file = DatasetFile.read(str(tmp_path / "copy"))
    stems = {split: [Path(path).stem for path in file.open(split).files] for split in file.splits}
    assert stems == {"train": ["0"], "val": ["1"]}


def test_images_from_several_folders_keep_their_labels(tmp_path: Path) -> None:
    """Both folders hold an a.png and are called `images`, which is where labels are looked for."""
    for k, place in enumerate(("x/images", "y/images/deep")):
        save(tmp_path / f"source/{place}/a.png", picture(HEIGHT, WIDTH, k))
        lay_out(
            tmp_path / "source",
            {f"{place.replace('images', 'labels')}/a.txt": f"{k} .5 .5 .5 .5\n"},
        )
    lay_out(tmp_path / "source", {"data.yaml": "train: [x/images, y/images]\nnames: [cat, dog]\n"})
    assert repair(*diagnose(tmp_path / "source"), tmp_path / "copy") == []
    copy = DatasetFile.read(str(tmp_path / "copy")).open("train")
    assert [str(Path(p).relative_to(tmp_path / "copy")) for p in copy.files] == [
        "images/train/x/a.png",
        "images/train/y/deep/a.png",
    ]
    assert (tmp_path / "copy/labels/train/y/deep/a.txt").is_file()
    assert [labels.classes.tolist() for labels in copy.labels] == [[0], [1]]


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("full", "empty"),
        ("file.txt", "empty"),
        ("source/fixed", "within"),
        ("link/fixed", "within"),
        ("images/train/x", "within"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, place: str, word: str) -> None:
    save(tmp_path / "images/train/a.png", picture(HEIGHT, WIDTH))
    lay_out(
        tmp_path,
        {"full/a.txt": "mine", "file.txt": "mine", "labels/train/a.txt": "0 .5 .5 .5 .5\n"},
    )
    text = f"path: {tmp_path / 'source'}\ntrain: {tmp_path / 'images/train'}\nnames: [cat]\n"
    lay_out(tmp_path, {"source/data.yaml": text})
    (tmp_path / "link").symlink_to(tmp_path / "source")
    before = tree(tmp_path)
    with pytest.raises(InputError, match=word):
        check_folder(*diagnose(tmp_path / "source")[:2], tmp_path / place)
    assert tree(tmp_path) == before


def test_by_the_users_door(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_yolo(here / "source")
    options = ["--data.image_size", "64", "--trainer.accelerator", "cpu", "--data.dataset"]
    with pytest.raises(SystemExit) as left:
        cli.main(["doctor", *options, "source", "--fix", "fixed", "--run", "one"])
    assert left.value.code == 1
    assert "fixed/repairs.txt" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["doctor", *options, "source", "--fix", "fixed", "--run", "three"])
    assert "needs a new or an empty folder" in capsys.readouterr().err
    cli.main(["doctor", *options, "fixed", "--run", "two"])


@pytest.mark.parametrize("kind", ["voc", "yolo"])
def test_names_that_are_not_utf_8(
    here: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They get others in the copy: lists and annotations are written in UTF-8."""
    stem = os.fsdecode(b"caf\xe9")
    for k, name in enumerate((stem, "cafe", "caf_")):
        save(here / f"source/{k}.png", picture(HEIGHT, WIDTH, k)).rename(
            here / f"source/{name}.png"
        )
        if kind == "voc":
            text = f"<annotation><filename>other.png</filename>{voc_object('cat')}</annotation>"
            (here / f"source/{name}.xml").write_text(text)
        else:
            (here / f"source/{name}.txt").write_text("0 .5 .5 .5 .5\n")
    (here / "source/data.yaml").write_text(f"train: .\nformat: {kind}\nnames: [cat]\n")
    with contextlib.suppress(SystemExit):
        cli.main(["doctor", "--data.dataset", "source", "--fix", "fixed", "--run", "one"])
    assert "named caf__2.png" in (here / "fixed/repairs.txt").read_text()
    assert "Traceback" not in capsys.readouterr().err
    dataset = DatasetFile.read("fixed").open("train")
    assert [
        (Path(file).name, len(dataset.labels[i].boxes)) for i, file in enumerate(dataset.files)
    ] == [
        ("caf_.png", 1),
        ("caf__2.png", 1),
        ("cafe.png", 1),
    ]
