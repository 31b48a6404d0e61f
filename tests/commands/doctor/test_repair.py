"""The repaired copy: which images and splits stay, what they are called, and where it may be; what
it does to labels is in test_doctor_labels.py."""

import json
from pathlib import Path

import pytest
import yaml
from made_datasets import by_name, files_of, lay_out, picture, save

from boltbox.detector.commands.doctor.examine import diagnose, open_splits
from boltbox.detector.commands.doctor.repair import repair
from boltbox.detector.data.dataset_file import DatasetFile

SOURCE = Path("source")
COPY = Path("copy")


def repaired(source=SOURCE, copy=COPY):
    file = DatasetFile.read(str(source))
    datasets, _ = open_splits(file)
    return repair(file, datasets, diagnose(file, datasets, 64), copy)


def names(source):
    file = DatasetFile.read(str(source))
    found = {}
    for split in file.splits:
        found[split] = files_of(file.open(split))
    return found


def lay(root, splits):
    """Images of these numbers, which are their contents, in splits of YOLO text."""
    content = {"names": ["cat", "dog"]}
    for split, numbers in splits.items():
        content[split] = f"images/{split}"
        for place, number in enumerate(numbers):
            stem = f"{split}{place}"
            save(root / f"images/{split}/{stem}.png", picture(40, 60, number))
            lay_out(root, {f"labels/{split}/{stem}.txt": "0 .5 .5 .5 .5\n"})
    lay_out(root, {"data.yaml": yaml.safe_dump(content)})


def test_copies_and_damage(here):
    """Of copies within a split the first stays, of those across splits the one in val."""
    lay(SOURCE, {"train": [1, 2, 2, 3, 4], "val": [3, 5]})
    cut = SOURCE / "images/train/train4.png"
    cut.write_bytes(cut.read_bytes()[:-300])
    lines = repaired()
    assert names(COPY) == {
        "train": ["train0.png", "train1.png"],
        "val": ["val0.png", "val1.png"],
    }
    assert (COPY / "repairs.txt").read_text().splitlines() == lines
    assert len(lines) == 3
    for path in (COPY / "images").rglob("*.png"):
        original = SOURCE / path.relative_to(COPY)
        assert path.read_bytes() == original.read_bytes()
    assert repaired(COPY, Path("twice")) == [], "nothing is left to do"


@pytest.mark.parametrize("has_one_folder", [True, False])
def test_splits_that_are_the_same_stay(here, has_one_folder):
    lay(SOURCE, {"train": [1]} if has_one_folder else {"train": [1], "val": [1]})
    if has_one_folder:
        with open(SOURCE / "data.yaml", "a") as file:
            file.write("val: images/train\n")
    repaired()
    assert list(map(len, names(COPY).values())) == [1, 1]


def test_images_of_several_folders_keep_their_labels(here):
    """Relative and absolute ones, each with an a.png, and two images with one stem."""
    for k, place in enumerate(("x/{}", "y/{}/deep")):
        save(SOURCE / place.format("images") / "a.png", picture(40, 60, k))
        lay_out(SOURCE / place.format("labels"), {"a.txt": f"{k} .5 .5 .5 .5\n"})
    save(SOURCE / "x/images/a.bmp", picture(40, 60, 2))
    folders = f"train: [x/images, {here}/source/y/images]\nnames: [cat, dog]\n"
    lay_out(SOURCE, {"data.yaml": folders})
    repaired()
    copy = by_name(DatasetFile.read("copy").open("train"))
    classes = {name: labels.classes.tolist() for name, labels in copy.items()}
    assert classes == {"x_images_a.bmp": [0], "x_images_a_2.png": [0], "y_images_deep_a.png": [1]}


def test_several_coco_files_become_one(here):
    """Both use the same ids, for other images and other categories. An image that both list, or one
    of them twice, has the objects of all, each once."""
    for k, categories in enumerate(("cat dog", "dog cat"), 1):
        save(SOURCE / f"images/{k}.png", picture(40, 60, k))
        box = {"category_id": 1, "bbox": [1, 2, 30, 20], "id": 1}
        ids = range(1, k + 2)
        content = {
            "images": [{"id": i, "file_name": f"{min(i, k)}.png"} for i in ids],
            "annotations": [box | {"image_id": i} for i in ids],
            "categories": [{"id": i, "name": n} for i, n in enumerate(categories.split(), 1)],
        }
        lay_out(SOURCE, {f"{k}.json": json.dumps(content)})
    lay_out(SOURCE, {"data.yaml": "train: [1.json, 2.json]\nnames: [cat, dog]\n"})
    repaired()
    for folder in (SOURCE, COPY):
        dataset = DatasetFile.read(str(folder)).open("train")
        assert files_of(dataset) == ["1.png", "2.png"]
        assert dataset.labels.classes.tolist() == [0, 1, 1]
        assert dataset.labels.boxes.tolist() == [[1, 2, 31, 22]] * 3
    assert "1.json, annotation 1 (cat): dropped" in (COPY / "repairs.txt").read_text()
    assert DatasetFile.read("source").open("train").places[1].endswith("source/2.json lists")


def test_folders_that_are_refused(here, refused):
    """Before any image is decoded."""
    lay(here / "source", {"train": [1]})
    lay_out(here, {"full/a.txt": "mine", "file.txt": "mine"})
    (here / "link").symlink_to(here / "source")
    for place in ("full", "file.txt", "source/fixed", "link/fixed"):
        assert place in refused(f"doctor --data.dataset source --fix {place} --run run")
        assert not Path("run/doctor.json").exists()
    assert (here / "full/a.txt").read_text() == (here / "file.txt").read_text() == "mine"
