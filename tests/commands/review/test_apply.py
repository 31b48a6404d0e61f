"""`review --apply`: what the decisions of a review make of data sets of each format, and whose
decisions are refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_datasets import as_coco, as_voc, as_yolo, coco_content, picture, save
from made_runs import read

import cli
from boltbox.detector.commands.doctor.examine import open_splits
from boltbox.detector.commands.review.apply import apply_decisions
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError

POLYGON = [2, 3, 20, 3, 20, 30]


def with_polygons(root):
    """As COCO; the object of a and the second of b have a polygon, the first of b is a crowd."""
    content = coco_content()
    for annotation, crowd in zip(content["annotations"], (0, 1, 0), strict=True):
        annotation |= {"iscrowd": crowd, "segmentation": [POLYGON], "area": 99}
    as_coco(root, content)


def objects(source, split=None):
    """Of each image by its name: rows of class, crowd, box, whether there is a polygon; by split."""
    file = DatasetFile.read(str(source), split, needs_val=True)
    found = {}
    for split, dataset in open_splits(file)[0].items():
        for path, labels in zip(dataset.files, dataset.labels, strict=True):
            rows = []
            for k, box in enumerate(labels.boxes.tolist()):
                kind = [int(labels.classes[k]), bool(labels.crowd[k]), bool(labels.polygons[k])]
                rows.append(kind + box)
            found[split, Path(path).name] = rows
    return found


def decide(source, changes, **more):
    """A decisions.json; changes: name of an image, label, box, class."""
    file = DatasetFile.read(str(source), more.pop("split", None), needs_val=True)
    images = {}
    for dataset in open_splits(file)[0].values():
        for path, labels in zip(dataset.files, dataset.labels, strict=True):
            images[Path(path).name] = (path, labels.digest())
    rows = []
    for name, label, box, number in changes:
        rows.append({"file": images[name][0], "label": label, "box": box, "class": number})
    where = {"dataset": str(Path(source).absolute())}
    where |= {"format": None, "split": file.share, "single_class": False}
    content = {"version": 1, "review": "0", "dataset": where, "names": file.names}
    content |= {"images": dict(images[row[0]] for row in changes), "decisions": [], "changes": rows}
    path = Path("decisions.json")
    path.write_text(json.dumps(content | more))
    return path


def apply(line):
    cli.main(f"review --run run --apply decisions.json {line}".split())


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("write", [as_yolo, as_voc, with_polygons])
def test_a_repaired_copy(write, here, capsys):
    """A class, a box, a deleted and a new label; the rest stays, and so does the original."""
    write(here / "set")
    before = objects("set")
    original = files(here / "set")
    split = {name: split for split, name in before}
    moved = [4.0, 5.5, 33.25, 38.0]
    first = before[split["b.png"], "b.png"][0][3:]
    changes = [
        ("b.png", 0, first, 0),  # another class, the same box
        ("b.png", 1, None, None),
        ("a.png", 0, moved, 0),
        ("c.png", None, [10, 20, 30, 99], 1),  # reaches past the frame
    ]
    decide("set", changes)
    if write is as_yolo:
        apply("--dry_run true --out copy")
        assert not Path("copy").exists()
    apply("--out copy")
    told = capsys.readouterr().out
    assert not Path("run").exists()
    expected = dict(before)
    of_b = before[split["b.png"], "b.png"]
    expected[split["b.png"], "b.png"] = [[0, *of_b[0][1:]]]
    of_a = before[split["a.png"], "a.png"]
    expected[split["a.png"], "a.png"] = [[0, of_a[0][1], False, *moved]]
    expected[split["c.png"], "c.png"] = [[1, False, False, 10, 20, 30, 64]]
    found = objects("copy")
    assert found.keys() == expected.keys(), "each image is in its split"
    for key, rows in expected.items():
        np.testing.assert_allclose(found[key], rows, atol=1e-4)
    assert files(here / "set") == original
    lines = Path("copy/changes.txt").read_text().splitlines()
    assert len(lines) == len(changes)
    assert [told.count(line) for line in lines] == [2 if write is as_yolo else 1] * len(lines)


def test_val_that_is_a_share(here):
    """Of many images the same ones are val in the copy; a copy of a data set that has moved."""
    for k in range(20):
        save(here / f"old/images/some/{k}.png", picture(40, 40, k))
        (here / "old/labels/some").mkdir(parents=True, exist_ok=True)
        (here / f"old/labels/some/{k}.txt").write_text("0 .5 .5 .5 .5\n")
    (here / "old/data.yaml").write_text("train: images/some\nnames: [a]\n")
    decide("old", [("7.png", 0, None, None)], split=0.3)
    before = objects("old", 0.3)
    shutil.move("old", "new")
    apply("--out copy --data.dataset new")
    after = objects("copy")
    assert sum(split == "val" for split, _ in after) == 6
    changed = {key for key, rows in before.items() if rows != after[key]}
    assert {name for _, name in changed} == {"7.png"}


BOX = [1, 2, 30, 20]
HOSTILE = {
    "a negative label": {"label": -1},
    "a label that is not there": {"label": 1},
    "a label that is text": {"label": "0"},
    "a negative class": {"class": -1},
    "a class without a name": {"class": 2},
    "no class": {"class": None},
    "no number": {"box": [1, 2, float("nan"), 20]},
    "a huge number": {"box": [1, 2, 10**400, 20]},
    "three numbers": {"box": [1, 2, 30]},
    "turned around": {"box": [30, 2, 1, 20]},
    "outside": {"box": [70, 2, 90, 20]},
    "another image": {"file": "/etc/passwd"},
    "no image": {"file": "a\0b"},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_changes(change, here):
    as_yolo(here / "set")
    path = decide("set", [("a.png", 0, BOX, 1)])
    content = read(path)
    content["changes"][0] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(InputError):
        apply_decisions(path, Path("copy"))
    assert not Path("copy").exists()


def test_decisions_that_do_not_fit(here, refused):
    """The labels changed, the classes did, or the file is of another kind; a format of the user's
    own is not imported because the file names it. Each is one sentence."""
    as_yolo(here / "set")
    path = decide("set", [("a.png", 0, BOX, 1)])
    good = path.read_text()
    content = json.loads(good)
    (here / "evil.py").write_text("raise SystemExit('imported')")
    for wrong in (
        "[]",
        "{",
        "[" * 10**5,
        json.dumps(content | {"version": 2}),
        json.dumps(content | {"names": ["dog", "cat"]}),
        json.dumps(content | {"dataset": content["dataset"] | {"dataset": "a\0b"}}),
    ):
        path.write_text(wrong)
        with pytest.raises(InputError):
            apply_decisions(path, Path("copy"))
    path.write_text(json.dumps(content | {"dataset": content["dataset"] | {"format": "evil.Rows"}}))
    apply_decisions(path, None)  # as detected
    path.write_text(good)
    with pytest.raises(InputError):
        apply_decisions(path, here / "set/copy")
    with open("set/labels/train/a.txt", "a") as file:
        file.write("0 .5 .5 .25 .25\n")
    assert "a.png" in refused("review --run run --apply decisions.json --out copy")
    assert not Path("copy").exists()
