"""Pictures on the doctor's page: of the right images, with the right boxes marked."""

from pathlib import Path

import numpy as np
import pytest
from made_datasets import (
    as_coco,
    as_yolo,
    coco_with,
    lay_out,
    load,
    picture,
    save,
    voc_object,
    voc_xml,
    yolo_line,
)
from made_page import fault, jpegs, page

from boltbox.detector.commands.doctor.gallery import Gallery
from boltbox.detector.commands.doctor.page import PICTURES
from boltbox.detector.data.datasets import DetectionDataset


def grey_set(
    root: Path, boxes: list[tuple[float, float, float, float]], layout: str
) -> tuple[DetectionDataset, Path]:
    """One even grey image of 400 x 300 pixels with these boxes; the file that names them."""
    image = np.full((300, 400, 3), 128, np.uint8)
    if layout == "yolo":
        save(root / "images/train/g.png", image)
        lines = "".join(yolo_line(0, *b, 400, 300) + "\n" for b in boxes)
        lay_out(
            root,
            {"labels/train/g.txt": lines, "data.yaml": "train: images/train\nnames: [cat, dog]\n"},
        )
        return load(root), root / "labels/train/g.txt"
    if layout == "voc":
        save(root / "JPEGImages/g.png", image)
        objects = voc_xml(*(voc_object("cat", *b) for b in boxes))
        lay_out(root, {"Annotations/g.xml": objects, "ImageSets/Main/train.txt": "g\n"})
        return load(root), root / "Annotations/g.xml"
    as_coco(root, coco_with([{"bbox": [x1, y1, x2 - x1, y2 - y1]} for x1, y1, x2, y2 in boxes]))
    save(root / "photos/a.png", image)
    return load(root), root / "train.json"


def black_and_white(image: np.ndarray) -> np.ndarray:
    """(H, W): nearly black or nearly white and without colour: the dashes."""
    return ((image.max(2) < 50) | (image.min(2) > 205)) & (np.ptp(image.astype(int), 2) < 40)


@pytest.mark.parametrize(
    ("layout", "place"),
    [("yolo", "line 2"), ("voc", "object 2 (cat)"), ("coco", "annotation 102 (cat)")],
)
def test_the_suspicious_box_is_framed(layout: str, place: str, tmp_path: Path) -> None:
    """Of two boxes the second: black and white dashes run around it, and nowhere else."""
    dataset, file = grey_set(tmp_path, [(40, 60, 120, 140), (240, 160, 340, 240)], layout)
    (image,) = jpegs(page(tmp_path, [fault("odd", file, place)], {"train": dataset}))
    assert image.shape == (300, 400, 3)
    dashes = black_and_white(image)
    dashes[40:62, 30:130] = False  # the name of the first box is written in black
    dashes[140:162, 235:345] = False  # and that of the second
    rows, columns = np.flatnonzero(dashes.any(1)), np.flatnonzero(dashes.any(0))
    assert (columns.min(), columns.max()) == (pytest.approx(235, abs=3), pytest.approx(345, abs=3))
    assert rows.max() == pytest.approx(245, abs=3)
    inside = image[80:120, 60:100].astype(int)
    assert np.abs(inside - 128).max() < 12, "nothing is drawn within the first box"


def test_a_dropped_box_is_framed_too(tmp_path: Path) -> None:
    """A box of no size is in no data set; it is kept with the reason why it was dropped. So is one
    that leaves the image."""
    _, file = grey_set(tmp_path, [(40, 60, 120, 140)], "yolo")
    file.write_text(file.read_text() + "0 0.5 0.5 0 0\n0 1.5 0.5 0.2 0.2\n0 nan 1 2\n")
    dataset = load(tmp_path)
    findings = [
        fault("zero", file, "line 2"),
        fault("past", file, "line 3"),
        fault("words", file, "line 4"),
    ]
    zero, past, words = jpegs(page(tmp_path, findings, {"train": dataset}))
    assert black_and_white(zero)[130:170, 180:220].sum() > 100, "around the middle"
    assert black_and_white(past)[:, 390:].sum() > 20, "at the edge where it left"
    assert black_and_white(words)[150:].sum() == 0


def test_objects_of_an_image(tmp_path: Path) -> None:
    """Where the finding names the image itself: COCO's objects by number, or none."""
    dataset, _ = grey_set(tmp_path, [(40, 60, 120, 140), (240, 160, 340, 240)], "coco")
    image = tmp_path / "photos/a.png"
    findings = [
        fault("one", image, "object 2"),
        fault("all", image),
        fault("beyond", image, "object 9"),
    ]
    one, whole, beyond = (
        black_and_white(x)[170:250, 230:350].sum()
        for x in jpegs(page(tmp_path, findings, {"train": dataset}))
    )
    assert one > 300
    assert whole == beyond == 0


def test_worst_images_first_and_each_once(tmp_path: Path) -> None:
    for i in range(PICTURES + 3):
        save(tmp_path / f"images/train/{i}.png", picture(40 + i, 60, i))
        lay_out(tmp_path, {f"labels/train/{i}.txt": "0 0.5 0.5 0.5 0.5\n"})
    lay_out(tmp_path, {"data.yaml": "train: images/train\nnames: [a]\n"})
    dataset = load(tmp_path)
    findings = [
        fault("odd", tmp_path / f"labels/train/{i}.txt", "line 1")
        for i in range(PICTURES + 3)
        for _ in range(i + 1)
    ]
    pictures = Gallery({"train": dataset}, findings).pictures(findings, PICTURES)
    assert [Path(p.files[0]).stem for p in pictures] == ["8", "7", "6", "5", "4", "3"]


def test_an_image_and_its_double_side_by_side(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    a, b = (str(tmp_path / f"images/train/{stem}.png") for stem in "ab")
    twin = fault("duplicate_image", a, "", f"the same image as {b} of val")
    (pair,) = Gallery({"train": load(tmp_path)}, [twin]).pictures([twin], 6)
    assert pair.files == [a, b]
    read = page(tmp_path, [twin], {"train": load(tmp_path)})
    assert "a.png | b.png" in read.text
    (image,) = [x for x in jpegs(read) if x.shape[1] > x.shape[0] * 1.8]
    # 60 x 40 drawn six times as large, 37 x 100 four times (at least 320 px), brought to the height
    # of the first
    assert image.shape == (240, 360 + round(148 * 240 / 400), 3)


def test_images_that_cannot_be_shown_do_not_end_the_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    as_yolo(tmp_path)
    dataset = load(tmp_path)
    (tmp_path / "images/train/a.png").write_bytes(b"no image any more")
    lay_out(
        tmp_path,
        {"images/train/lost.jpg": "nor this", "labels/train/orphan.txt": "0 0.5 0.5 0.5 0.5"},
    )
    findings = [
        fault("broken", tmp_path / "images/train/a.png"),
        fault(
            "unreadable_image",
            tmp_path / "images/train/b.png",
            problem="the decoder crashed on it (SIGSEGV)",
        ),
        fault(
            "similar",
            tmp_path / "images/train/c.png",
            problem=f"looks like {tmp_path / 'images/train/b.png'}",
        ),
        fault("lost", tmp_path / "images/train/lost.jpg"),
        fault("orphan_label_file", tmp_path / "labels/train/orphan.txt"),
        fault("json", tmp_path / "nowhere.json", "annotation 3 (cat)"),
    ]
    read = page(tmp_path, findings, {"train": dataset})
    assert read.count("img") == 0
    assert read.text.count("cannot be shown: this image cannot be decoded") == 2
    assert read.text.count("cannot be shown: the decoder crashed on it (SIGSEGV)") == 2, (
        "it is not opened again"
    )
    assert "orphan.txt" in read.text


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"images": [], "categories": [], "annotations": [1]}',
        '{"images": [{"id": [], "file_name": 3}], "categories": []}',
    ],
)
def test_json_files_that_are_damaged(content: str, tmp_path: Path) -> None:
    as_coco(tmp_path)
    dataset = load(tmp_path)
    lay_out(tmp_path, {"train.json": content})
    read = page(
        tmp_path, [fault("odd", tmp_path / "train.json", "annotation 1 (cat)")], {"train": dataset}
    )
    assert "annotation 1 (cat)" in read.text


def test_a_class_without_a_name_and_a_crowd(tmp_path: Path) -> None:
    """Both are drawn; more than 25 boxes without their names."""
    dataset, file = grey_set(tmp_path, [(10 * k, 10, 10 * k + 8, 90) for k in range(30)], "yolo")
    dataset.labels[0].classes[:] = 7
    assert len(jpegs(page(tmp_path, [fault("odd", file, "line 1")], {"train": dataset}))) == 1
