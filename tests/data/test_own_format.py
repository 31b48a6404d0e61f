"""A label format of the user's own: the one of docs/formats.md, in a file outside the tree."""

import csv
import shutil
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from made_datasets import by_name, lay_out, load, picture, save
from made_runs import code_of, read, train, type_line

from boltbox.detector.data.dataset_file import DatasetFile, format_class
from boltbox.detector.data.formats.format import Entry, Split
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.data.read_split import SplitReader
from boltbox.detector.system.errors import InputError

NAME = "my_formats.CsvRows"
HEAD = ("filename", "class", "x1", "y1", "x2", "y2")


@pytest.fixture
def data(small_data, tmp_path, monkeypatch):
    """The demo's boxes as csv, and the format in a folder beside it. Line 2 of train.csv is no
    box."""
    root = tmp_path / "data"
    for split in ("train", "val"):
        dataset = load(small_data, split)
        shutil.copytree(small_data.parent / "images" / split, root / split)
        with open(root / f"{split}.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(HEAD)
            if split == "train":
                rows.writerow(
                    (f"train/{Path(dataset.files[0]).name}", dataset.names[0], 3, 4, "wide", 9)
                )
            for image, labels in zip(dataset.files, dataset.labels, strict=True):
                for c, box in zip(labels.classes, labels.boxes.tolist(), strict=True):
                    rows.writerow((f"{split}/{Path(image).name}", dataset.names[c], *box))
    lay_out(
        root, {"data.yaml": f"train: train.csv\nval: val.csv\nnames: {load(small_data).names}\n"}
    )
    lay_out(tmp_path, {"code/my_formats.py": code_of("formats")[0]})
    monkeypatch.syspath_prepend(tmp_path / "code")
    yield root
    sys.modules.pop("my_formats", None)


def test_fit_and_validate(data, small_data, here):
    """The csv holds what the text files hold; validate takes the format over from the run."""
    one = "--trainer.limit_train_batches 1 --trainer.max_epochs 1"
    train(data / "data.yaml", "run", f"{one} --data.format {NAME}")
    dropped = (here / "run/dropped.txt").read_text()
    assert f"train: {data / 'train.csv'}, line 2: not a number\n" in dropped
    for split in ("train", "val"):
        ours = DatasetFile.read(str(data / "data.yaml"), format=NAME).open(split)
        labels_of = by_name(load(small_data, split))
        for name, labels in by_name(ours).items():
            assert np.array_equal(labels.boxes, labels_of[name].boxes)
            assert np.array_equal(labels.classes, labels_of[name].classes)
    line = "validate --ckpt_path run/checkpoints/last.ckpt --report.enabled false"
    type_line(f"{line} --run again --trust_parts true")
    assert read(here / "again/metrics.json")


def test_a_data_file_loads_no_code(data, refused):
    text = (data / "data.yaml").read_text()
    lay_out(data, {"data.yaml": f"{text}format: {NAME}\n"})
    told = refused(f"fit --data.dataset {data} --run {data}/run")
    assert f"give --data.format {NAME}" in told
    assert "my_formats" not in sys.modules
    import_module("my_formats")
    assert DatasetFile.read(str(data), format=NAME).open("val").files


def test_label_files_of_one_image(tmp_path):
    """Each object counts once, also where a format keeps what it has read, while `find` names its file."""

    class Several(YoloText):
        read = cache(YoloText.read)

        def find(self):
            return [Entry(f"{tmp_path}/x.png", f"{tmp_path}/{file}.txt") for file in self.named]

    save(tmp_path / "x.png", picture(40, 60))
    lay_out(tmp_path, {"a.txt": "0 .5 .5 .1 .1\n0 .5\n", "b.txt": "0 .2 .2 .1 .1\n"})
    for named, count in (("-aa", 1), ("-ab", 2), ("-a", 1)):
        Several.named = named
        form = Several(Split("train", [tmp_path / "a.txt"], tmp_path))
        dataset = SplitReader(form, ["cat"], True, False, True).read()
        assert (len(dataset.labels.boxes), dataset.unlabelled) == (count, 0)
        assert "a.txt lists" in dataset.places[0]
        assert sum("column" in fault.problem for fault in dataset.faults) == named.count("a")


@pytest.mark.parametrize("name", ["tsv", "nowhere.Csv", "csv.DictReader"])
def test_what_is_no_format(name):
    with pytest.raises(InputError, match=r"data\.format"):
        format_class(name)


def test_the_cache_knows_the_code(data, monkeypatch):
    module = import_module("my_formats")
    reads = []
    whole = module.CsvRows.read
    monkeypatch.setattr(
        module.CsvRows, "read", lambda self, *args: reads.append(args) or whole(self, *args)
    )
    for _ in range(2):
        DatasetFile.read(str(data / "data.yaml"), format=NAME).open("val")
    once = len(reads)
    code = data.parent / "code/my_formats.py"
    code.write_text(code.read_text() + "\n# other\n")
    DatasetFile.read(str(data / "data.yaml"), format=NAME).open("val")
    assert len(reads) == 2 * once > 0
