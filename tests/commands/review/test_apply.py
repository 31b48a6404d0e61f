"""`review --apply`: what the decisions of a review make of data sets of each format, and which
decisions are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_datasets import as_coco, as_voc, as_yolo, coco_content

import cli
from boltbox.detector.commands.review.apply import apply_decisions
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError

BOX = [4.0, 5.5, 33.25, 38.0]
APPLY = "review --run run --apply decisions.json --out copy"


def with_polygons(root):
    """As COCO; all objects have a polygon and are crowds."""
    content = coco_content()
    for annotation in content["annotations"]:
        annotation |= {"iscrowd": 1, "segmentation": [[2, 3, 20, 3, 20, 30]]}
    as_coco(root, content)


def images(source):
    """Of each image: split and name; rows of box, crowd, polygons, class; path; digest."""
    file = DatasetFile.read(source, needs_val=True)
    for split in file.splits:
        part = file.open(split, strict=False)
        for path, labels in zip(part.files, part.labels, strict=True):
            columns = (labels.boxes, labels.crowd, list(map(len, labels.polygons)), labels.classes)
            rows = np.column_stack(columns).tolist()
            yield (split, Path(path).name), rows, path, labels.digest()


def decide(*changes):
    """Writes decisions.json for the folder `set`; changes: image, label, box, class."""
    found = {name: (path, digest) for (_, name), _, path, digest in images("set")}
    rows = [{"file": found[a][0], "label": b, "box": c, "class": d} for a, b, c, d in changes]
    file = DatasetFile.read("set")
    source = {"dataset": str(Path(file.source).absolute()), "format": None, "split": 0.2}
    content = {"version": 1, "dataset": source | {"single_class": False}, "names": ["cat", "dog"]}
    content |= {"images": dict(found.values()), "changes": rows}
    Path("decisions.json").write_text(json.dumps(content))
    return content


@pytest.mark.parametrize("write", [as_yolo, as_voc, with_polygons])
def test_a_repaired_copy(write, here, capsys):
    """A class, a box, a deleted and a new label, of a data set that has moved; the rest stays."""
    write(here / "set")
    expected = {place: rows for place, rows, *_ in images("set")}
    of = {name: rows for (_, name), rows in expected.items()}
    decide(
        ("b.png", 0, of["b.png"][0][:4], 0),
        ("b.png", 1, None, None),
        ("a.png", 0, BOX, 1),
        ("c.png", None, [10, 20, 30, 99], 1),
    )
    of["b.png"].pop()
    of["b.png"][0][6] = 0
    of["a.png"][0][:4] = BOX
    of["a.png"][0][5:] = [0, 1]
    of["c.png"].append([10, 20, 30, 64, 0, 0, 1])
    Path("set").rename("moved")
    pictures = sorted(path.read_bytes() for path in Path("moved").rglob("*.png"))
    words = APPLY.split() + ["--data.dataset", "moved"]
    cli.main(words + ["--dry_run", "true"])
    assert not Path("copy").exists()
    told = capsys.readouterr().out
    assert told.endswith(" review --apply decisions.json --out DIR\n")
    cli.main(words)
    lines = Path("copy/changes.txt").read_text().splitlines()
    assert len(lines) == sum(line in told for line in lines) == 4
    assert sum(line.endswith(" -> deleted") for line in lines) == 1
    for place, rows, *_ in images("copy"):
        np.testing.assert_allclose(rows, expected.pop(place), atol=1e-4)
    assert not expected
    assert sorted(path.read_bytes() for path in Path("copy").rglob("*.png")) == pictures


HOSTILE = [
    {"label": -1},
    {"label": 1},
    {"label": "0"},
    {"class": -1},
    {"class": 2},
    {"class": None},
]
HOSTILE += [{"file": "/etc/passwd"}, {"file": "a\0b"}, {"file": ""}]
for box in ([1, 2, float("inf"), 9], [1, 2, 10**400, 9], [1, 2, 3], [30, 2, 1, 9], [70, 2, 90, 9]):
    HOSTILE.append({"box": box})
HOSTILE.append({"box": "1299"})


def test_what_is_refused(here, refused):
    """Changes, classes and files that make no sense, and labels that have changed since. No code is
    imported because the file names it."""
    as_yolo(here / "set")
    content = decide(("a.png", 0, BOX, 1))
    source = content["dataset"]
    wrong = [{"version": 2}, {"names": ["dog", "cat"]}, {"dataset": source | {"dataset": "a\0b"}}]
    wrong += [{"changes": [content["changes"][0] | change]} for change in HOSTILE]
    path = Path("decisions.json")
    for more in wrong:
        path.write_text(json.dumps(content | more))
        with pytest.raises(InputError):
            apply_decisions(path, Path("copy"))
    path.write_text(json.dumps(content | {"dataset": source | {"format": "evil.Rows"}}))
    (here / "evil.py").write_text("raise SystemExit('imported')")
    assert len(apply_decisions(path, None)) == 1
    with open("set/labels/train/a.txt", "a") as file:
        file.write("0 .5 .5 .25 .25\n")
    assert "a.png" in refused(APPLY)
    assert not Path("copy").exists()
