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
    files_of,
    lay_out,
    load,
    picture,
    save,
    voc_object,
    voc_xml,
)
from made_labels import labels_of, table_of

import cli
from boltbox.detector.data import read_split
from boltbox.detector.data.cache import labels as label_cache
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import yolo_txt

Maker = Callable[[Path], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "labels"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each time that the headers of images were read, which is done once."""
    calls: list[Any] = []
    whole = read_split.image_sizes
    monkeypatch.setattr(
        read_split, "image_sizes", lambda paths: calls.append(paths) or whole(paths)
    )
    return calls


def content(dataset: DetectionDataset) -> Any:
    """All that a data set says, for comparison."""
    of_image = [
        (x.boxes.tolist(), x.classes.tolist(), [[p.tolist() for p in parts] for parts in x.polygons], x.crowd.tolist(),
         x.area.tolist(), x.height, x.width, x.boxes.dtype, x.classes.dtype, x.crowd.dtype, x.area.dtype)
        for x in dataset.labels
    ]  # fmt: skip
    faults = [(str(fault), fault.image, fault.box) for fault in dataset.faults]
    sources = json.loads(json.dumps(dataset.sources))
    return list(dataset.files), of_image, dataset.names, faults, sources


def faulty_yolo(root: Path) -> None:
    """A polygon, a bad line, an image without a label file and one that is none; a name that is not
    ASCII."""
    as_yolo(root)
    lay_out(root, {"labels/train/a.txt": "0 .1 .1 .5 .1 .5 .9\n1 .5 .5 .2 .2\n0 .5 .5 0 0\n"})
    save(root / "images/train/sub/ü d.png", picture(30, 20))
    (root / "images/train/z.png").write_text("no image")


def crowded_coco(root: Path) -> None:
    parts = [[1, 2, 3, 4, 5, 1], [7, 7, 9, 9, 7, 9.5, 6, 6]]
    as_coco(
        root,
        coco_with([{"segmentation": parts}, {"iscrowd": 1, "area": 3.5}, {"bbox": [1, 1, 0, 5]}]),
    )


def difficult_voc(root: Path) -> None:
    as_voc(root)
    lay_out(
        root,
        {
            "Annotations/a.xml": voc_xml(
                voc_object("cat", more="<difficult>1</difficult>"), voc_object("dog")
            )
        },
    )


@pytest.mark.parametrize("make", [faulty_yolo, difficult_voc, crowded_coco])
def test_a_hit_gives_what_parsing_gives(
    make: Maker, tmp_path: Path, parsed: list[Any], cache: Path, capsys: pytest.CaptureFixture
) -> None:
    make(tmp_path)
    first = load(tmp_path)
    assert len(parsed) == 1
    second = load(tmp_path)
    assert len(parsed) == 1, "nothing is parsed again"
    assert content(second) == content(first)
    assert second.faults, "what was left out is told again"
    assert len(list(cache.iterdir())) == 1
    assert capsys.readouterr().out == ""


def edit(path: str, text: str) -> Maker:
    return lambda root: lay_out(root, {path: text})


def swap(path: str, old: str, new: str) -> Maker:
    """Other content of the same length."""

    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        assert len(old) == len(new)
        (root / path).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (as_yolo, edit("labels/train/a.txt", "1 .5 .5 .5 .5\n")),
        (as_yolo, swap("labels/train/b.txt", "1 0.5", "0 0.5")),
        (as_yolo, lambda r: (r / "labels/train/b.txt").unlink()),
        (as_yolo, lambda r: save(r / "images/train/a.png", picture(20, 30))),
        (as_yolo, lambda r: save(r / "images/train/d.png", picture(20, 30))),
        (as_yolo, lambda r: (r / "images/train/c.png").unlink()),
        (as_yolo, lambda r: save(r / "images/train/deep/d.png", picture(20, 30))),
        (as_yolo, edit("data.yaml", "train: images/train\nnames: [cat, cow]\n")),
        (as_voc, edit("Annotations/a.xml", voc_xml(voc_object("dog")))),
        (as_voc, edit("ImageSets/Main/train.txt", "b\n")),
        (as_coco, lambda r: as_coco(r, coco_with([{}]))),
        (as_coco, lambda r: (r / "photos/c.png").unlink()),
    ],
)  # fmt: skip
def test_a_change_is_noticed(make: Maker, change: Maker, tmp_path: Path, parsed: list[Any]) -> None:
    make(tmp_path)
    load(tmp_path)
    change(tmp_path)
    changed = load(tmp_path)
    assert len(parsed) == 2
    assert content(load(tmp_path)) == content(changed)
    assert len(parsed) == 2, "the new state is cached"


@pytest.mark.parametrize("kind", ["list", "coco"])
def test_an_image_that_appears_where_it_is_looked_for_first(kind: str, tmp_path: Path) -> None:
    """In the end it is another file."""
    save(tmp_path / "late/x.png", picture(20, 30))
    if kind == "list":
        lay_out(
            tmp_path,
            {
                "lists/early/": "",
                "late/x.txt": "0 .5 .5 .5 .5\n",
                "lists/late/x.txt": "0 .5 .5 .5 .5\n",
                "lists/train.txt": "late/x.png\n",
                "data.yaml": "train: lists/train.txt\n" + PAIR,
            },
        )
        early = tmp_path / "lists/late/x.png"
    else:
        images = {
            "images": [{"id": 1, "file_name": "x.png"}],
            "categories": [{"id": 1, "name": "cat"}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9]}],
        }
        lay_out(
            tmp_path,
            {
                "t.json": json.dumps(images),
                "data.yaml": "train: t.json\nimages: [early, late]\n" + PAIR,
            },
        )
        early = tmp_path / "early/x.png"
    assert [(x.height, x.width) for x in load(tmp_path).labels] == [(20, 30)]
    save(early, picture(40, 50))
    assert [(x.height, x.width) for x in load(tmp_path).labels] == [(40, 50)]


def test_options_decide_too(tmp_path: Path) -> None:
    difficult_voc(tmp_path)
    assert load(tmp_path).names == ["cat", "dog"]
    single = DatasetFile.read(str(tmp_path)).open("train", single_class=True)
    assert single.names == ["item"]
    assert load(tmp_path).names == ["cat", "dog"]


def cut(block: bytes) -> bytes:
    return block[: len(block) // 2]


def flipped(block: bytes) -> bytes:
    middle = block.index(b"stamp")
    return block[:middle] + bytes([block[middle] ^ 1]) + block[middle + 1 :]


class Runs:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, ("it-ran",)


def written(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def changed(block: bytes, **changes: np.ndarray) -> bytes:
    """Intact, but with other content."""
    with np.load(io.BytesIO(block)) as file:
        return written(**dict(file) | changes)


def pickled(block: bytes) -> bytes:
    """As YOLOv5 caches: a NumPy file that holds a pickle."""
    file = io.BytesIO()
    np.save(file, np.array({"labels": Runs()}, object), allow_pickle=True)
    return file.getvalue()


def other_version(block: bytes) -> bytes:
    with np.load(io.BytesIO(block)) as file:
        about = json.loads(file["about"].tobytes())
    about["stamp"] = "0"
    return changed(block, about=np.frombuffer(json.dumps(about).encode(), np.uint8))


@pytest.mark.parametrize(
    "spoil",
    [
        cut,
        flipped,
        lambda block: b"",
        lambda block: pickle.dumps(Runs()),
        pickled,
        lambda block: changed(block, boxes=np.array([Runs()], object)),
        other_version,
        lambda block: changed(block, about=np.frombuffer(b"[" * 10**5, np.uint8)),
        lambda block: written(),
    ],
)
def test_a_file_that_is_no_good_is_replaced(
    spoil: Callable[[bytes], bytes], tmp_path: Path, cache: Path, here: Path
) -> None:
    as_yolo(tmp_path)
    first = load(tmp_path)
    (path,) = cache.iterdir()
    good = path.read_bytes()
    path.write_bytes(spoil(good))
    assert content(load(tmp_path)) == content(first)
    assert path.read_bytes() == good
    assert not (here / "it-ran").exists()


@pytest.mark.parametrize("seed", range(4))
def test_damage_anywhere_changes_no_label(seed: int, tmp_path: Path, cache: Path) -> None:
    crowded_coco(tmp_path)
    first = content(load(tmp_path))
    (path,) = cache.iterdir()
    good = path.read_bytes()
    rng = np.random.default_rng(seed)
    for at in rng.integers(0, len(good), 25).tolist():
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << seed)]) + good[at + 1 :])
        assert content(load(tmp_path)) == first, at


def test_pickles_in_this_test_do_run(here: Path) -> None:
    pickle.loads(pickle.dumps(Runs()))
    assert (here / "it-ran").is_dir()


def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read may be neither the old nor the new; the next start reads it again."""
    as_yolo(tmp_path)
    whole = yolo_txt.parse_yolo

    def slow(text: str, *args: Any) -> Any:
        (tmp_path / "labels/train/c.txt").write_text("1 .5 .5 .1 .1\n")
        return whole(text, *args)

    with monkeypatch.context() as patch:
        patch.setattr(yolo_txt, "parse_yolo", slow)
        load(tmp_path)
    assert len(load(tmp_path).labels.boxes) == 4


def test_two_writes_within_a_tick_of_the_clock(tmp_path: Path) -> None:
    """Of the same length, so that only their times tell them apart."""
    as_yolo(tmp_path)
    for _ in range(20):
        for number in (0, 1):
            lay_out(tmp_path, {"labels/train/c.txt": f"{number} .5 .5 .1 .1\n"})
            assert load(tmp_path).labels[2].classes.tolist() == [number]


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A line a split. A file in the folder's place, as the tests may run as root."""
    (tmp_path / "cache").write_text("")
    as_yolo(tmp_path)
    lay_out(tmp_path, {"data.yaml": "train: images/train\nval: images/train\n" + PAIR})
    for split in ("train", "val"):
        assert len(load(tmp_path, split).labels.boxes) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [f"{tmp_path / 'cache/labels'}" in line for line in lines] == [True, True]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "own"))
    found = [label_cache.cache_folder()]
    for name in ("BOLTBOX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
        found.append(label_cache.cache_folder())
    assert found == [tmp_path / "own", tmp_path / "xdg/boltbox", tmp_path / "home/.cache/boltbox"]


def test_a_fit_says_the_same_the_second_time(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    """Through the front door, without a word about the cache; the folders of the data stay as they
    are."""
    before = sorted(small_data.parent.rglob("*"))
    line = ["--data.dataset", str(small_data), "--data.image_size", "64", "--data.workers", "0"]
    said = []
    for _ in range(2):
        cli.main(["anchors", *line, "--model.network.width_multiple", "0.125"])
        said.append(capsys.readouterr().out.splitlines()[:2])
    assert said[0] == said[1]
    assert said[0][0].startswith("train:     24 images")
    assert sorted(small_data.parent.rglob("*")) == before


def test_table_gives_back_what_went_in() -> None:
    rng = np.random.default_rng(0)
    given = []
    for n in (3, 0, 2, 0):
        polygons = [[rng.random((k + 3, 2)).astype(np.float32) for k in range(j)] for j in range(n)]
        boxes = rng.random((n, 4)).astype(np.float32)
        given.append(
            labels_of(
                boxes,
                rng.integers(0, 9, n),
                30 + n,
                40,
                polygons,
                rng.random(n) < 0.5,
                rng.random(n),
            )
        )
    table = table_of(given)
    assert len(table) == 4
    for ours, theirs in zip(table, given, strict=True):
        for name in ("boxes", "classes", "crowd", "area"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        assert (ours.height, ours.width) == (theirs.height, theirs.width)
        assert [[p.tolist() for p in parts] for parts in ours.polygons] == [
            [p.tolist() for p in parts] for parts in theirs.polygons
        ]
    assert table.image_of.tolist() == [0, 0, 0, 2, 2]
    assert len(table_of([])) == 0


def test_names_of_any_kind(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    for name in ("ü ä\n.png", os.fsdecode(b"\xff.png")):
        save(tmp_path / "images/train/a.png", picture(20, 30)).rename(
            tmp_path / "images/train" / name
        )
    assert load(tmp_path).files == load(tmp_path).files


def test_file_names_are_as_before(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    load(tmp_path)
    assert files_of(load(tmp_path)) == ["a.png", "b.png", "c.png"]
