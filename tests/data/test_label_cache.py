"""The labels cache: a hit gives what parsing gives, any change is noticed, and no file in it can do
harm."""

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_datasets import (
    PAIR,
    as_coco,
    as_voc,
    as_yolo,
    coco_with,
    lay_out,
    load,
    picture,
    save,
    voc_object,
    voc_xml,
)
from made_labels import labels_of, table_of

from boltbox.detector.data import read_split
from boltbox.detector.data.cache import labels as label_cache
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import yolo_txt

Maker = Callable[[Path], Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "labels"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each time that the headers of images were read, which is done once."""
    calls: list[Any] = []
    whole = read_split.image_sizes

    def image_sizes(paths: Any) -> Any:
        calls.append(paths)
        return whole(paths)

    monkeypatch.setattr(read_split, "image_sizes", image_sizes)
    return calls


def content(dataset: DetectionDataset) -> Any:
    """All that a dataset says, for comparison."""
    arrays = {name: (x.tolist(), x.dtype) for name, x in vars(dataset.labels).items()}
    faults = [(str(fault), fault.image, fault.box) for fault in dataset.faults]
    sources = json.loads(json.dumps(dataset.sources))
    return list(dataset.files), arrays, dataset.names, faults, sources


def faulty_yolo(root: Path) -> None:
    """A polygon, a bad line, an image without a label file and one that is none; names that are not
    ASCII or not UTF-8."""
    as_yolo(root)
    lay_out(root, {"labels/train/a.txt": "0 .1 .1 .5 .1 .5 .9\n1 .5 .5 .2 .2\n0 .5 .5 0 0\n"})
    for name in ("sub/ü\nd.png", os.fsdecode(b"\xff.png")):
        place = root / "images/train" / name
        place.parent.mkdir(exist_ok=True)
        save(root / "x.png", picture(30, 20)).rename(place)
    (root / "images/train/z.png").write_text("no image")


def crowded_coco(root: Path) -> None:
    parts = [[1, 2, 3, 4, 5, 1], [7, 7, 9, 9, 7, 9.5, 6, 6]]
    more = [{"iscrowd": 1, "area": 3.5}, {"bbox": [1, 1, 0, 5]}]
    as_coco(root, coco_with([{"segmentation": parts}, *more]))


@pytest.mark.parametrize("make", [faulty_yolo, crowded_coco])
def test_a_hit_gives_what_parsing_gives(
    make: Maker, tmp_path: Path, reads: list[Any], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def swap(root: Path) -> None:
    """Other content of the same length; only the time of the file tells it."""
    file = root / "labels/train/b.txt"
    text = file.read_text()
    file.write_text(text.replace("1 0.5", "0 0.5"))
    assert file.read_text() != text


def edit(path: str, text: str) -> Maker:
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
def test_a_change_is_noticed(make: Maker, change: Maker, tmp_path: Path, reads: list[Any]) -> None:
    make(tmp_path)
    first = content(load(tmp_path))
    change(tmp_path)
    changed = content(load(tmp_path))
    assert changed != first
    assert content(load(tmp_path)) == changed
    assert len(reads) == 2, "the new state is cached"


def test_an_image_that_appears_where_it_is_looked_for_first(tmp_path: Path) -> None:
    """In the end it is another file."""
    save(tmp_path / "late/x.png", picture(20, 30))
    images = {
        "images": [{"id": 1, "file_name": "x.png"}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9]}],
    }
    yaml = "train: t.json\nimages: [early, late]\n" + PAIR
    lay_out(tmp_path, {"t.json": json.dumps(images), "data.yaml": yaml})
    assert load(tmp_path).labels.sizes.tolist() == [[20, 30]]
    save(tmp_path / "early/x.png", picture(40, 50))
    assert load(tmp_path).labels.sizes.tolist() == [[40, 50]]


class Runs:
    """Leaves a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, ("it-ran",)


def changed(block: bytes, **changes: np.ndarray) -> bytes:
    """Intact, but with other arrays."""
    with np.load(io.BytesIO(block)) as file:
        arrays = dict(file) | changes
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def pickled(block: bytes) -> bytes:
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
        lambda block: changed(block, boxes=np.array([Runs()], object)),
        lambda block: changed(block, about=np.frombuffer(b"[" * 10**5, np.uint8)),
        lambda block: changed(block, about=np.frombuffer(b'{"stamp": "0"}', np.uint8)),
    ],
)
def test_a_file_that_is_no_good_is_replaced(
    spoil: Callable[[bytes], bytes], cache: Path, here: Path
) -> None:
    as_yolo(here)
    first = load(here)
    (path,) = cache.iterdir()
    good = path.read_bytes()
    path.write_bytes(spoil(good))
    assert content(load(here)) == content(first)
    assert path.read_bytes() == good
    assert not (here / "it-ran").exists()
    pickle.loads(pickle.dumps(Runs()))
    assert (here / "it-ran").exists(), "the control"


def test_damage_anywhere_changes_no_label(tmp_path: Path, cache: Path) -> None:
    crowded_coco(tmp_path)
    first = content(load(tmp_path))
    (path,) = cache.iterdir()
    good = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(good), 60).tolist():
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        assert content(load(tmp_path)) == first, at


def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read may be neither the old nor the new; the next start reads it again."""
    as_yolo(tmp_path)
    whole = yolo_txt.parse_yolo

    def slow(text: str) -> Any:
        lay_out(tmp_path, {"labels/train/c.txt": "1 .5 .5 .1 .1\n"})
        return whole(text)

    with monkeypatch.context() as patch:
        patch.setattr(yolo_txt, "parse_yolo", slow)
        load(tmp_path)
    assert len(load(tmp_path).labels.boxes) == 4


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the folder's place, as the tests may run as root."""
    (tmp_path / "cache").write_text("")
    as_yolo(tmp_path)
    assert len(load(tmp_path).labels.boxes) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{tmp_path / 'cache/labels'}" in line


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "own"))
    found = [label_cache.cache_folder()]
    for name in ("BOLTBOX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
        found.append(label_cache.cache_folder())
    assert found == [tmp_path / "own", tmp_path / "xdg/boltbox", tmp_path / "home/.cache/boltbox"]


def test_table_gives_back_what_went_in() -> None:
    rng = np.random.default_rng(0)
    given = []
    for n in (3, 0, 2, 0):
        polygons = [[rng.random((k + 3, 2)).astype(np.float32) for k in range(j)] for j in range(n)]
        boxes = rng.random((n, 4))
        crowd = rng.random(n) < 0.5
        classes = rng.integers(0, 9, n)
        given.append(labels_of(boxes, classes, 30 + n, 40, polygons, crowd, rng.random(n)))
    table = table_of(given)
    assert len(table) == 4
    for ours, reference in zip(table, given, strict=True):
        for name in ("boxes", "classes", "crowd", "area"):
            assert np.array_equal(getattr(ours, name), getattr(reference, name))
        assert (ours.height, ours.width) == (reference.height, reference.width)
        lists = [[part.tolist() for part in parts] for parts in ours.polygons]
        assert lists == [[part.tolist() for part in parts] for parts in reference.polygons]
    assert table.image_of.tolist() == [0, 0, 0, 2, 2]
    assert len(table_of([])) == 0
