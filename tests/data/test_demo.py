"""The demo data set: the same bytes each time, labels that fit what is drawn, nobody else's files
touched."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from boltbox.detector.data import demo
from boltbox.detector.data.demo import NAMES, make_demo
from boltbox.detector.system.errors import InputError


def contents(root: Path) -> dict[str, str]:
    """The hash of every file below `root`, by its relative path."""
    files = (p for p in root.rglob("*") if p.is_file())
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }


def read_labels(root: Path, split: str) -> np.ndarray:
    """All label lines of a split, (n, 5)."""
    lines = "".join(p.read_text() for p in (root / "labels" / split).iterdir()).splitlines()
    return np.array([[float(field) for field in line.split()] for line in lines])


def test_layout(tmp_path: Path) -> None:
    config = make_demo(tmp_path / "deep" / "demo", train=32, val=4)
    root = tmp_path / "deep" / "demo"
    assert config == root / "data.yaml"
    assert sorted(p.name for p in (root / "images/train").iterdir()) == [
        f"{i:04d}.jpg" for i in range(32)
    ]
    assert sorted(p.name for p in (root / "images/val").iterdir()) == [
        f"{i:04d}.jpg" for i in range(4)
    ]
    assert sorted(p.name for p in (root / "labels/val").iterdir()) == [
        f"{i:04d}.txt" for i in range(4)
    ]
    assert (root / "labels/train/0010.txt").read_text() == "", "an empty image with a label file"
    assert not (root / "labels/train/0030.txt").exists(), "an empty image without one"
    assert yaml.safe_load(config.read_text())["names"] == list(NAMES)
    assert [p.name for p in root.parent.iterdir()] == ["demo"], "nothing is left beside it"


def test_same_bytes_each_time(tmp_path: Path) -> None:
    for name, train in (("a", 8), ("b", 8), ("more", 9)):
        make_demo(tmp_path / name, train=train, val=4)
    a, b, more = (contents(tmp_path / name) for name in ("a", "b", "more"))
    assert len(a) == 2 * 12 + 1
    assert a == b
    assert a.items() <= more.items(), "an image does not depend on how many there are"


def test_every_class_is_frequent(tmp_path: Path) -> None:
    root = make_demo(tmp_path / "demo", train=100, val=20).parent
    for split, count in (("train", 100), ("val", 20)):
        images = sorted((root / "images" / split).iterdir())
        assert len(images) == count
        rows = read_labels(root, split)
        counts = np.bincount(rows[:, 0].astype(int), minlength=len(NAMES))
        assert len(counts) == len(NAMES)
        assert counts.min() > count / 3
        low = rows[:, 1:3] - rows[:, 3:] / 2
        high = rows[:, 1:3] + rows[:, 3:] / 2
        assert low.min() > -2e-6
        assert high.max() < 1 + 2e-6
        assert rows[:, 3:].min() * 240 > 4


def test_boxes_fit_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On grey: a box is the one around an object's coloured pixels, and every object has one."""
    monkeypatch.setattr(demo, "_background", lambda h, w, rng: np.full((h, w, 3), 128.0))
    errors = []
    for seed in range(100):
        image, rows = demo.draw_image(np.random.default_rng(seed))
        coloured = cv2.medianBlur(np.abs(image.astype(int) - 128).max(2).astype(np.uint8), 3) > 30
        height, width = coloured.shape
        for cx, cy, w, h in rows[:, 1:] * (width, height, width, height):
            left, top, w, h = (round(n) for n in (cx - w / 2, cy - h / 2, w, h))
            box = coloured[top : top + h, left : left + w]
            x, y, across, down = cv2.boundingRect(box.astype(np.uint8))
            errors.append([x, y, w - x - across, h - y - down])
            coloured[max(top - 1, 0) : top + h + 1, max(left - 1, 0) : left + w + 1] = False
        assert not coloured.any()
    assert np.max(errors) < 5, "a tip, blurred, may fade"
    assert np.mean(errors) < 0.5


def test_second_call_writes_nothing(tmp_path: Path) -> None:
    root = make_demo(tmp_path / "demo", train=2, val=1).parent
    before = {p: p.stat().st_mtime_ns for p in (root, *root.rglob("*"))}
    assert make_demo(root, train=2, val=1) == root / "data.yaml"
    assert {p: p.stat().st_mtime_ns for p in (root, *root.rglob("*"))} == before


@pytest.mark.parametrize("name", ["notes.txt", "images/train/cat.jpg"])
def test_foreign_folder_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("path: .\n")
    before = contents(tmp_path)
    with pytest.raises(InputError, match="move it away"):
        make_demo(tmp_path / "mine", train=1, val=1)
    assert contents(tmp_path) == before


def test_several_at_once(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: make_demo(root, train=3, val=1), range(4)))
    assert paths == [root / "data.yaml"] * 4
    make_demo(tmp_path / "alone", train=3, val=1)
    assert contents(root) == contents(tmp_path / "alone")
