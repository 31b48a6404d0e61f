"""Bad labels: an object is dropped and named, its image stays; an image that lost all is left out; a
dataset that cannot be used is an error that names the file."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_datasets import (
    PAIR,
    SCENES,
    TRAIN,
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

import cli
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
    line = "doctor --data.dataset data --data.image_size 64 --run run --fix copy"
    with pytest.raises(SystemExit, match="1"):
        cli.main(line.split())
    assert files_of(load(here / "copy")) == ["a.png", "c.png"]
    assert "b.png" in (here / "copy/repairs.txt").read_text()


LIST = "train: l.txt\n"
CLASSES = '"categories": [{"id": 1, "name": "cat"}]'


@pytest.mark.parametrize(
    ("base", "files", "words"),
    [
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: tsv"}, ["data.yaml", "tsv"]),
        (as_yolo, {"data.yaml": TRAIN, "labels/train/a.txt": "", "labels/train/b.txt": ""}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": TRAIN + "names: [cat, dog, cat]"}, ["data.yaml", "`names`", "'cat'"]),
        (as_yolo, {"data.yaml": TRAIN + "names: {0: cat, 2: dog}"}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": TRAIN + "names: cat"}, ["data.yaml", "`names`"]),
        (as_yolo, {"data.yaml": TRAIN + "names: [yes, no]"}, ["data.yaml", "`names`", "quotes"]),
        (as_yolo, {"data.yaml": TRAIN + "nc: 80\n" + PAIR}, ["data.yaml", "`nc`", "80"]),
        (as_yolo, {"data.yaml": TRAIN + "nc: 1000000"}, ["data.yaml", "`nc`"]),
        (as_yolo, {"data.yaml": PAIR + "train: []"}, ["data.yaml", "train"]),
        (as_yolo, {"data.yaml": "val: images/train\n" + PAIR}, ["data.yaml", "`train`"]),
        (as_yolo, {"data.yaml": "train: images/trian\n" + PAIR}, ["data.yaml", "images/trian"]),
        (as_yolo, {"data.yaml": f"train: [images/train, gone]\n{PAIR}"}, ["data.yaml", "gone"]),
        (as_yolo, {"data.yaml": "- images/train"}, ["data.yaml"]),
        (as_yolo, {"data.yaml": "names: [cat"}, ["data.yaml", "line 1"]),
        (as_yolo, {"none/": "", "data.yaml": "train: none\n" + PAIR}, ["data.yaml", "none"]),
        (as_yolo, {"l.txt": "./gone.png", "data.yaml": LIST + PAIR}, ["data.yaml", "gone.png"]),
        (as_yolo, {"l.txt": "\n", "data.yaml": LIST + PAIR}, ["data.yaml", "l.txt"]),
        (as_yolo, {"labels/train/c.txt": "2 .5 .5 .1 .1"}, ["labels/train/c.txt", "line 1", "2"]),
        (as_yolo, {f"labels/train/{k}.txt": "0 .5 .5 .2 0\n" for k in SCENES}, ["data.yaml", "a.png", "line 1"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: coco"}, ["images/train"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "format: voc"}, ["data.yaml", "voc"]),
        (as_yolo, {"data.yaml": "train: images/train/a.png\n" + PAIR}, ["images/train/a.png"]),
        (as_yolo, {"data.yaml": TRAIN + PAIR + "split: 2"}, ["data.yaml", "split"]),
        (as_yolo, {"data.yaml": f"{TRAIN}val: images/train\n{PAIR}split: 0.2"}, ["data.yaml", "split", "val"]),
        (as_voc, {"ImageSets/Main/train.txt": ""}, ["`names`"]),
        (as_voc, {"data.yaml": "train: ImageSets/Main/train.txt\nnames: [cat]"}, ["b.xml", "object 1", "'dog'"]),
        (as_coco, {"data.yaml": "train: train.json\nimages: photos\nnames: [cat]"}, ["train.json", "annotation 2", "'dog'"]),
        (as_coco, {"data.yaml": "train: gone.json"}, ["gone.json"]),
        (as_coco, {"data.yaml": "train: train.csv", "train.csv": "filename\na.png"}, ["train.csv", "xmin"]),
        (as_coco, {"data.yaml": "train: x.jsonl", "x.jsonl": "{}"}, ["x.jsonl", "line 1", "file_name"]),
        *((as_coco, {"train.json": text}, ["train.json"]) for text in (
            "{", "[]", '{"images": []}', '{"images": {}, "categories": []}',
            f'{{"images": [{{"id": 1}}], {CLASSES}}}', f'{{"images": [{{"id": true, "file_name": "a"}}], {CLASSES}}}',
            '{"images": [], "categories": [{"id": 1}]}', f'{{"images": [], "annotations": [{{"image_id": []}}], {CLASSES}}}',
        )),
        (None, {}, ["no supported labels", "convert"]),
        (None, {"ImageSets/Main/train.txt": "a"}, ["data.yaml", "names", "convert"]),
        (None, {"a.png": "", "b.png": ""}, ["2 images", "docs/data.md"]),
        (None, {"data.yaml": f"{TRAIN}{PAIR}format: my.Rows"}, ["data.yaml", "--data.format"]),
    ],
)  # fmt: skip
def test_errors(tmp_path, base, files, words):
    if base:
        base(tmp_path)
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
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--data.dataset", "data", "--run", "run"])
    kinds = {}
    for finding in json.loads((here / "run/doctor.json").read_text())["findings"]:
        kinds[finding["kind"]] = (finding["severity"], Path(finding["file"]).name)
    assert kinds["different_labels"] == ("fault", "c.png")
    assert kinds["duplicate_image"] == ("warning", "b.png")
