"""The labels cache: a hit gives what parsing gives, any change is noticed, and no file in it can do
harm."""

import io
import json
import os
import pickle
import signal

import label_layouts as layouts
import numpy as np
import pytest
import torch
from made_datasets import (
    PAIR,
    as_coco,
    as_voc,
    as_yolo,
    coco_with,
    content,
    lay_out,
    load,
    picture,
    save,
    voc_object,
    voc_xml,
)
from made_runs import train
from ranks import together
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from boltbox.detector.data import read_split
from boltbox.detector.data.cache import labels as label_cache
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.formats import coco_json, yolo_txt
from boltbox.detector.data.read_split import SplitReader
from boltbox.detector.system.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "labels"


@pytest.fixture
def reads(monkeypatch):
    """One entry for each time that the headers of images were read, which is done once."""
    calls = []
    whole = read_split.image_sizes

    def image_sizes(paths):
        calls.append(paths)
        return whole(paths)

    monkeypatch.setattr(read_split, "image_sizes", image_sizes)
    return calls


def faulty_yolo(root):
    """A polygon, a bad line, an image without a label file and one that is none; names that are not
    ASCII or not UTF-8."""
    as_yolo(root)
    lay_out(root, {"labels/train/a.txt": "0 .1 .1 .5 .1 .5 .9\n1 .5 .5 .2 .2\n0 .5 .5 0 0\n"})
    for name in ("sub/ü\nd.png", os.fsdecode(b"\xff.png")):
        place = root / "images/train" / name
        place.parent.mkdir(exist_ok=True)
        save(root / "x.png", picture(30, 20)).rename(place)
    (root / "images/train/z.png").write_text("no image")


def crowded_coco(root):
    parts = [[1, 2, 3, 4, 5, 1], [7, 7, 9, 9, 7, 9.5, 6, 6]]
    more = [{"iscrowd": 1, "area": 3.5}, {"bbox": [1, 1, 0, 5]}]
    as_coco(root, coco_with([{"segmentation": parts}, *more]))


@pytest.mark.parametrize("make", [faulty_yolo, crowded_coco])
def test_a_hit_gives_what_parsing_gives(make, tmp_path, reads, cache, capsys):
    make(tmp_path)
    first = load(tmp_path)
    second = load(tmp_path)
    assert len(reads) == 1, "nothing is parsed again"
    assert content(second) == content(first)
    assert second.faults, "what was left out is told again"
    assert len(list(cache.iterdir())) == 1
    assert capsys.readouterr().out == ""
    single = DatasetFile.read(str(tmp_path)).open("train", single_class=True)
    assert single.names == ["item"]
    assert content(load(tmp_path)) == content(first)


def swap(root):
    """Other content of the same length; only the time of the file tells it."""
    file = root / "labels/train/b.txt"
    text = file.read_text()
    file.write_text(text.replace("1 0.5", "0 0.5"))
    assert file.read_text() != text


def edit(path, text):
    return lambda root: lay_out(root, {path: text})


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (as_yolo, swap),
        (as_yolo, lambda r: (r / "labels/train/b.txt").unlink()),
        (as_yolo, lambda r: save(r / "images/train/a.png", picture(20, 30))),
        (as_yolo, lambda r: save(r / "images/train/deep/d.png", picture(20, 30))),
        (as_yolo, lambda r: (r / "images/train/c.png").unlink()),
        (as_yolo, edit("data.yaml", "train: images/train\nnames: [cat, cow]\n")),
        (as_voc, edit("Annotations/a.xml", voc_xml(voc_object("dog")))),
        (as_voc, edit("ImageSets/Main/train.txt", "b\n")),
        (as_coco, lambda r: as_coco(r, coco_with([{}]))),
    ],
)
def test_a_change_is_noticed(make, change, tmp_path, reads):
    make(tmp_path)
    first = content(load(tmp_path))
    change(tmp_path)
    changed = content(load(tmp_path))
    assert changed != first
    assert content(load(tmp_path)) == changed
    assert len(reads) == 2, "the new state is cached"


class Runs:
    """Leaves a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("it-ran",)


def with_other_key(block):
    """Intact, but of other options."""
    content = torch.load(io.BytesIO(block), weights_only=True)
    buffer = io.BytesIO()
    torch.save({**content, "key": [0]}, buffer)
    return buffer.getvalue()


def pickled(block):
    """As YOLOv5 caches: a NumPy file that holds a pickle."""
    buffer = io.BytesIO()
    np.save(buffer, np.array({"labels": Runs()}, object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda block: block[: len(block) // 2],
        lambda block: b"",
        lambda block: pickle.dumps(Runs()),
        pickled,
        with_other_key,
    ],
)
def test_a_file_that_is_no_good_is_replaced(spoil, cache, here):
    as_yolo(here)
    first = content(load(here))
    (path,) = cache.iterdir()
    good = path.read_bytes()
    path.write_bytes(spoil(good))
    assert content(load(here)) == first
    assert path.read_bytes() == good
    assert not (here / "it-ran").exists()
    pickle.loads(pickle.dumps(Runs()))
    assert (here / "it-ran").exists(), "the control"


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
    """What was read may be neither the old nor the new; the next start reads it again."""
    as_yolo(tmp_path)
    whole = yolo_txt.parse_yolo

    def slow(text):
        lay_out(tmp_path, {"labels/train/c.txt": "1 .5 .5 .1 .1\n"})
        return whole(text)

    with monkeypatch.context() as patch:
        patch.setattr(yolo_txt, "parse_yolo", slow)
        load(tmp_path)
    assert len(load(tmp_path).labels.boxes) == 4


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    """A file in the folder's place, as the tests may run as root."""
    (tmp_path / "cache").write_text("")
    as_yolo(tmp_path)
    assert len(load(tmp_path).labels.boxes) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{tmp_path / 'cache/labels'}" in line


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "own"))
    found = [label_cache.cache_folder()]
    for name in ("BOLTBOX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
        found.append(label_cache.cache_folder())
    assert found == [tmp_path / "own", tmp_path / "xdg/boltbox", tmp_path / "home/.cache/boltbox"]


def test_one_cache_for_all_commands_from_everywhere(here, reads, monkeypatch):
    """`fit` is strict, `doctor` is not."""
    as_yolo(here / "pets")
    faulty_yolo(here / "pets")
    lay_out(here, {"pets/labels/train/b.txt": "7 .5 .5 .1 .1\n", "else/where.txt": ""})
    found = DatasetFile.read("pets").open("train", strict=False)
    monkeypatch.chdir(here / "else")
    assert content(DatasetFile.read("../pets").open("train", strict=False)) == content(found)
    with pytest.raises(InputError, match=r"pets/labels/train/b\.txt, line 1: .* 7"):
        DatasetFile.read("../pets").open("train")
    assert len(reads) == 1


def test_no_json_is_parsed_again(tmp_path, monkeypatch):
    """Not for the names either."""
    layouts.LAYOUTS["coco"].write(tmp_path)
    first = DatasetFile.read(str(tmp_path))
    expected = [content(first.open(split)) for split in first.splits]
    monkeypatch.setattr(coco_json, "read_text", None)
    second = DatasetFile.read(str(tmp_path))
    assert second.names == first.names
    assert [content(second.open(split)) for split in second.splits] == expected


@pytest.mark.parametrize("make", [faulty_yolo, crowded_coco, as_voc])
def test_several_processes_read_what_one_reads(make, tmp_path, monkeypatch):
    """Also if the system kills one."""
    make(tmp_path)
    monkeypatch.setattr(read_split, "PART", 1)
    found = []
    for parallel, deadly in ((99, ""), (1, ""), (1, "b.")):
        monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / f"cache{len(found)}"))
        monkeypatch.setattr(read_split, "PARALLEL", parallel)
        monkeypatch.setattr(read_split, "available_cores", lambda: 2)
        with monkeypatch.context() as patch:
            if deadly:
                patch.setattr(SplitReader, "read_part", killed_at(deadly))
            found.append(content(load(tmp_path)))
    assert found[1] == found[2] == found[0]


def killed_at(name):
    """A `read_part` that kills the process that is to read an image, but not this one."""
    whole = SplitReader.read_part
    parent = os.getpid()

    def read_part(reader, entries):
        if os.getpid() != parent and name in entries[0].image:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(reader, entries)

    return read_part


def first_reads(data, log):
    """Of a rank: a fit, in which each reading of headers leaves a line."""
    whole = read_split.image_sizes

    def image_sizes(paths):
        with open(log, "a") as file:
            file.write(f"{os.environ['LOCAL_RANK']}\n")
        return whole(paths)

    read_split.image_sizes = image_sizes
    more = "--trainer.devices 2 --trainer.max_epochs 1 --trainer.limit_train_batches 1"
    train(data, log.with_name("run"), more)


def test_one_process_of_a_machine_reads(small_data, here):
    together(first_reads, small_data, here / "log.txt")
    assert (here / "log.txt").read_text() == "0\n" * 2, "train and val, by the first"


def test_an_error_of_the_first_process_ends_all(here, capfd):
    """And is printed once."""
    as_yolo(here / "pets")
    lay_out(here, {"pets/labels/train/a.txt": "9 .5 .5 .1 .1\n"})
    with pytest.raises((ProcessRaisedException, ProcessExitedException)):
        together(first_reads, here / "pets", here / "log.txt")
    assert capfd.readouterr().err.count("labels/train/a.txt, line 1") == 1


@pytest.mark.parametrize("name", ["late/x.png", "C:\\pets\\late\\x.png"])
def test_an_image_that_appears_where_it_is_looked_for_first(name, tmp_path):
    """In the end it is another file."""
    images = {
        "images": [{"id": 1, "file_name": name}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9]}],
    }
    yaml = "train: t.json\nimages: early\n" + PAIR
    lay_out(tmp_path, {"t.json": json.dumps(images), "data.yaml": yaml})
    with pytest.raises(InputError):
        load(tmp_path)
    save(tmp_path / "late/x.png", picture(20, 30))
    assert load(tmp_path).labels.sizes.tolist() == [[20, 30]]
    save(tmp_path / "early/late/x.png", picture(40, 50))
    assert load(tmp_path).labels.sizes.tolist() == [[40, 50]]


def test_a_listed_image_that_comes_later(tmp_path, monkeypatch):
    """Also where its path starts at the current folder, which was another one before."""
    as_yolo(tmp_path)
    image = tmp_path / "images/train/a.png"
    moved = image.rename(tmp_path / "a.png")
    lay_out(
        tmp_path, {"l.txt": "/content/images/train/a.png", "data.yaml": "train: l.txt\n" + PAIR}
    )
    with pytest.raises(InputError):
        load(tmp_path)
    moved.rename(image)
    assert len(load(tmp_path)) == 1
    lay_out(tmp_path, {"l/l.txt": "images/train/a.png", "l/data.yaml": "train: l.txt\n" + PAIR})
    with pytest.raises(InputError):
        load(tmp_path / "l")
    monkeypatch.chdir(tmp_path)
    assert len(load(tmp_path / "l")) == 1


def test_damage_anywhere_changes_no_label(tmp_path, cache):
    crowded_coco(tmp_path)
    first = content(load(tmp_path))
    (path,) = cache.iterdir()
    good = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(good), 60).tolist():
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        assert content(load(tmp_path)) == first, at
