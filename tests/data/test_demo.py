"""The demo data set: the same bytes each time, labels that fit what is drawn, nobody else's files
touched."""

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import yaml
from made_runs import contents

from boltbox.detector.data import demo
from boltbox.detector.data.demo import NAMES, make_demo
from boltbox.detector.system.errors import InputError


def test_files(tmp_path):
    """Two threads at once make the same bytes as one alone; an image does not depend on how many
    there are; a second call writes nothing."""
    root = tmp_path / "deep/demo"
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: make_demo(root, train=32, val=2), range(2)))
    assert paths == [root / "data.yaml"] * 2
    assert list(root.parent.iterdir()) == [root], "nothing is left beside it"
    files = contents(root)
    assert len(files) == 34 + 33 + 1
    assert files["labels/train/0010.txt"] == b"", "an empty image with a label file"
    assert "labels/train/0030.txt" not in files, "an empty image without one"
    assert yaml.safe_load(files["data.yaml"])["names"] == list(NAMES)
    fewer = contents(make_demo(tmp_path / "fewer\udcff", train=9, val=1).parent)
    assert fewer.items() <= files.items()
    assert {"images/train/0008.jpg", "images/val/0000.jpg"} <= fewer.keys()
    (root / "images/train/0000.jpg").write_bytes(b"")
    assert make_demo(root, train=32, val=2) == root / "data.yaml"
    assert (root / "images/train/0000.jpg").read_bytes() == b""


def test_boxes_fit_what_is_drawn(monkeypatch):
    """On grey: coloured pixels are in boxes, and near all four sides of these."""
    monkeypatch.setattr(demo, "_background", lambda h, w, rng: np.full((h, w, 3), 128.0))
    for seed in range(60):
        image, rows = demo.draw_image(np.random.default_rng(seed))
        coloured = cv2.medianBlur(np.abs(image.astype(int) - 128).max(2).astype(np.uint8), 3) > 30
        rest = coloured.copy()
        height, width = coloured.shape
        for cx, cy, w, h in rows[:, 1:] * (width, height, width, height):
            left, top, right, bottom = map(round, (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2))
            box = coloured[top:bottom, left:right]
            for side in (box, box[::-1], box.T, box.T[::-1]):
                assert side[:5].any()  # a tip, blurred, may fade
            rest[max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1] = False
        assert not rest.any()


def test_foreign_folder_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="mine"):
        make_demo(tmp_path / "mine", train=1, val=1)
    assert contents(tmp_path) == {"mine/notes.txt": b"mine"}
