"""The doctor's page: findings by kind, with cut-outs in which they are marked."""

import base64
import re
from pathlib import Path

import cv2
import numpy as np
from made_datasets import lay_out, load, save, yolo_text
from PIL import ImageColor

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding
from boltbox.detector.commands.doctor.page import LISTED, PICTURES, write_diagnosis
from boltbox.detector.report.drawing import DETECTION, LABEL

EVIL = '"><script>alert(1)<'


def page(folder, findings, dataset=None):
    boxes = {"train": {EVIL: 3}}
    datasets = {"train": dataset} if dataset else {}
    write_diagnosis(folder / "doctor.html", Diagnosis(str(folder), findings, boxes), datasets)
    return (folder / "doctor.html").read_text(encoding="utf-8")


def shown(html):
    """(H, W, 3) uint8 RGB of each picture."""
    found = []
    for content in re.findall(r"data:image/jpeg;base64,([^\"]*)", html):
        bits = np.frombuffer(base64.b64decode(content), np.uint8)
        found.append(cv2.imdecode(bits, cv2.IMREAD_COLOR_RGB))
    return found


def test_kinds_and_texts(tmp_path):
    """Faults come first, so many of a kind are listed, and whatever files say is text."""
    many = [
        Finding("odd_box", f"problem {i} {EVIL}", f"{EVIL}.txt", "train", f"line {i}")
        for i in range(LISTED + 7)
    ]
    html = page(tmp_path, [Finding("missing_label_file", "it is small", split="val")] + many)
    assert "<script" not in html
    assert html.index("missing_label_file (1)") > html.index(f"odd_box ({len(many)})")
    assert f"problem {LISTED - 1} " in html
    assert f"problem {LISTED} " not in html
    assert "<td>3</td>" in html


def near(image, colour):
    """(H, W): the pixels of about this colour."""
    return (np.abs(image.astype(int) - ImageColor.getrgb(colour)) < 60).all(2)


def test_the_box_is_marked_and_in_the_middle(tmp_path):
    """Of two boxes the second: thin orange, on the thick blue of a label."""
    boxes = ((0, 40, 60, 120, 140), (0, 240, 160, 340, 240))
    lines = yolo_text(boxes, 400, 300)
    described = "train: images/train\nnames: [cat]\n"
    lay_out(tmp_path, {"labels/train/g.txt": lines, "data.yaml": described})
    path = str(save(tmp_path / "images/train/g.png", np.full((300, 400, 3), 128, np.uint8)))
    finding = Finding("odd", "", path, image=path, box=boxes[1][1:])
    (image,) = shown(page(tmp_path, [finding], load(tmp_path)))
    # 200 x 200 pixels from (190, 100) on, drawn as 240 x 240
    for colour in (DETECTION, LABEL):
        rows, columns = (np.flatnonzero(near(image, colour).any(k)) for k in (1, 0))
        edges = [columns.min(), columns.max(), rows.min(), rows.max()]
        assert np.abs(np.subtract(edges, [60, 180, 72, 168])).max() <= 9
    assert not near(image[90:150, 80:160], DETECTION).any()
    lost = Finding("empty", "", path, image=path, box=(200, 150, 200, 150))
    (image,) = shown(page(tmp_path, [lost]))
    assert near(image, DETECTION).sum() > 20, "a box without a size"
    long = str(save(tmp_path / "long.png", np.full((20, 24000, 3), 128, np.uint8)))
    half = Finding("large", "", long, image=long, box=(0, 0, 12000, 20))
    (image,) = shown(page(tmp_path, [half]))
    assert 110 <= np.flatnonzero(near(image, DETECTION).any(0)).max() <= 130


def test_worst_images_come_first_and_each_once(tmp_path):
    """With the image that one is like; what cannot be shown does not end the page."""
    paths = []
    findings = []
    for k in range(PICTURES + 2):
        image = np.full((40, 40, 3), 25 * k, np.uint8)
        paths.append(str(save(tmp_path / f"{k}.png", image)))
        findings += [Finding("odd", "", paths[k], image=paths[k])] * (k + 1)
    found = shown(page(tmp_path, findings))
    assert [round(image.mean() / 25) for image in found] == [7, 6, 5, 4, 3, 2]
    Path(paths[3]).write_bytes(b"no image any more")
    like = Finding("like", "", paths[2], image=paths[2], other=paths[4])
    broken = Finding("broken", "", paths[3], image=paths[3])
    html = page(tmp_path, [like, broken])
    assert [round(image.mean() / 25) for image in shown(html)] == [2, 4]
    assert html.count("cannot be shown") == 1
