"""Bad labels: an object is dropped and named, its image stays; an image that lost all is left out; a
dataset that cannot be used is an error that names the file."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from made_datasets import (
    PAIR,
    as_coco,
    as_voc,
    as_yolo,
    counts,
    files_of,
    lay_out,
    load,
    picture,
    save,
)
from made_runs import findings_of

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.errors import InputError


def test_an_image_that_lost_all(here):
    """b is left out and named, also from the cache, and is not in a repaired copy; c keeps what is
    sound, where a box may leave the image."""
    root = here / "data"
    as_yolo(root)
    sound = "0 .5 .5 .5 .5\n\n0 2 .5 .5 .5\n1 1 .25 .5 .125\n1 .1 .25 .9 .25 .5 .75\n"
    lost = "0 1.5 .5 .5 .5\n0 .5 .5 .5\n"
    lay_out(root, {"labels/train/b.txt": lost, "labels/train/c.txt": sound})
    for _ in range(2):
        dataset = load(root)
        assert files_of(dataset) == ["a.png", "c.png"]
        assert counts(dataset) == (2, 4, 0, 0)
        places = {(Path(fault.file).name, fault.where) for fault in dataset.faults}
        named = {("b.png", ""), ("b.txt", "line 1"), ("b.txt", "line 2"), ("c.txt", "line 3")}
        assert places == named
        labels = dataset.labels[1]  # of 64 x 64 pixels
        expected = [[16, 16, 48, 48], [48, 12, 80, 20], [6.4, 16, 57.6, 48]]
        np.testing.assert_allclose(labels.boxes, expected, atol=1e-4)
        assert labels.classes.tolist() == [0, 1, 1]
        assert labels.polygons[:2] == [[], []]
        triangle = [[6.4, 16], [57.6, 16], [32, 48]]
        np.testing.assert_allclose(labels.polygons[2], [triangle], atol=1e-4)
    findings_of("data", "run", "--fix copy")
    assert files_of(load(here / "copy")) == ["a.png", "c.png"]
    assert "b.png" in (here / "copy/repairs.txt").read_text()


SETS = {"yolo": as_yolo, "voc": as_voc, "coco": as_coco}
CASES = yaml.safe_load(Path(__file__).with_name("bad_labels.yaml").read_text())


@pytest.mark.parametrize(("base", "files", "words"), CASES)
def test_errors(tmp_path, base, files, words):
    if base:
        SETS[base](tmp_path)
    lay_out(tmp_path, files)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("name", ["gone.yaml", "train.json", "a.xml"])
def test_files_that_are_no_dataset(name, tmp_path):
    lay_out(tmp_path, {"train.json": "{}", "a.xml": "<annotations/>"})
    with pytest.raises(InputError, match=name):
        DatasetFile.read(str(tmp_path / name))


def test_identical_images_with_other_boxes(here):
    """In another order they are the same; of another class they are a fault."""
    pair = ["0 .5 .5 .2 .2\n", "0 .2 .2 .1 .1\n"]
    lines = {"a": "".join(pair), "b": "".join(pair[::-1]), "c": pair[0] + "1" + pair[1][1:]}
    for stem, text in lines.items():
        save(here / f"data/images/{stem}.png", picture(40, 60))
        lay_out(here, {f"data/labels/{stem}.txt": text})
    lay_out(here, {"data/data.yaml": "train: images\n" + PAIR})
    kinds = {}
    for finding in findings_of("data", "run"):
        kinds[finding["kind"]] = (finding["severity"], Path(finding["file"]).name)
    assert kinds["different_labels"] == ("fault", "c.png")
    assert kinds["duplicate_image"] == ("warning", "b.png")
