"""The doctor's page: whole, harmless, legible, with its findings by kind and its charts."""

import os
from pathlib import Path

import numpy as np
import pytest
from made_datasets import as_yolo, lay_out, load, picture, save, yolo_line
from made_page import Reader, fault, jpegs, page
from PIL import ImageColor

from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.labels import examine_labels, left_out
from boltbox.detector.commands.doctor.page import LISTED, PICTURES, write_diagnosis
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.report.drawing import DETECTION, LABEL

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    """In the folder's name, file names, class names, splits, kinds and sentences."""
    stem = EVIL.replace("/", "\u2215")
    root = tmp_path / "<script>alert(2)<"
    save(root / "images/train/a.png", picture(40, 60))
    (root / "images/train/a.png").rename(root / f"images/train/{stem}.png")
    lay_out(
        root,
        {f"labels/train/{stem}.txt": "0 0.5 0.5 0.5 0.5\n", "data.yaml": "train: images/train\n"},
    )
    with (root / "data.yaml").open("a") as file:
        file.write(f"names: ['{EVIL}', \"<b>'&amp;\"]\n")
    dataset = load(root)
    findings = [
        fault(
            EVIL,
            root / f"images/train/{stem}.png",
            EVIL,
            EVIL,
            split=EVIL,
            image=root / f"images/train/{stem}.png",
        ),
        fault("k", EVIL),
        fault("k", ""),
    ]
    read = page(root, findings, {EVIL: dataset})
    assert read.count("script") == 0
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert len(jpegs(read)) == 1
    assert read.count("img") == 2, "the picture and that of the labels, and none from a name"
    assert read.text.count(EVIL) >= 6
    assert read.text.count(stem) >= 2
    assert "<b>'&amp;" in read.text, "and only once"


def test_nothing_is_fetched(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    read = page(tmp_path, [fault("a", tmp_path / "images/train/a.png")], {"train": load(tmp_path)})
    assert not {"script", "link", "iframe", "object", "form"} & {tag for tag, _ in read.tags}
    for _, attributes in read.tags:
        assert not attributes.keys() & {"srcset", "action", "xlink:href"}
        assert (attributes.get("href") or "#").startswith("#")
        assert (attributes.get("src") or "data:").startswith("data:")
    assert "url(" not in read.style
    assert "@import" not in read.style
    (policy,) = [
        a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are shown as escapes. OpenCV would end the process with a
    segmentation fault."""
    image = tmp_path / os.fsdecode(b"bad\xff.png")
    save(tmp_path / "good.png", picture(40, 60)).rename(image)
    gone = tmp_path / os.fsdecode(b"\xfe.jpg")
    read = page(tmp_path, [fault("odd", image, image=image), fault("gone", gone, image=gone)], {})
    assert "bad\\udcff.png" in read.text
    (shown,) = jpegs(read)
    assert shown.shape == (240, 240, 3)
    assert "this image cannot be decoded ([Errno 2] No such file" in read.text


def test_nothing_found_and_nothing_known(tmp_path: Path) -> None:
    read = page(tmp_path, [], {})
    assert "nothing found" in read.text


def test_a_page_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page(tmp_path, [], {})
    before = (tmp_path / "out/doctor.html").read_bytes()

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="the disk is full"):
        page(tmp_path, [fault("a", "b")], {})
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["doctor.html"]
    assert (tmp_path / "out/doctor.html").read_bytes() == before


def test_findings_by_kind(tmp_path: Path) -> None:
    many = [
        fault("odd_box", tmp_path / f"labels/{i}.txt", f"line {i}", f"problem {i}")
        for i in range(LISTED + 7)
    ]
    notes = [fault("small_thing", "", severity="note", split="val") for _ in range(3)]
    write_diagnosis(tmp_path / "doctor.html", Diagnosis("x", [*notes, *many], {}), {})
    html = (tmp_path / "doctor.html").read_text()
    read = Reader(html)
    first = f"fault: odd_box ({len(many)})"
    assert read.text.index(first) < read.text.index("note: small_thing (3)"), "faults come first"
    assert html.split("<details>")[0].count("problem ") < 40, "the rest is unfolded"
    assert "7 further ones are in doctor.json" in read.text
    assert f"Files are in {tmp_path / 'labels'}" in read.text
    assert "19.txt, line 19" in read.text
    assert f"problem {LISTED - 1}" in read.text
    assert f"problem {LISTED}" not in read.text
    assert f"{len(many)} faults, 0 warnings, 3 notes" in read.text


# Cut-outs


def grey_set(root: Path, lines: str) -> Path:
    """One even grey image of 400 x 300 pixels with these labels; its path."""
    lay_out(
        root,
        {"labels/train/g.txt": lines, "data.yaml": "train: images/train\nnames: [cat, dog]\n"},
    )
    return save(root / "images/train/g.png", np.full((300, 400, 3), 128, np.uint8))


def near(image: np.ndarray, colour: str) -> np.ndarray:
    """(H, W): the pixels of about this colour."""
    return (np.abs(image.astype(int) - ImageColor.getrgb(colour)) < 60).all(2)


def test_the_box_is_marked_and_in_the_middle(tmp_path: Path) -> None:
    """Of two boxes the second: thin orange, on the thick blue of a label."""
    boxes = ((0, 40, 60, 120, 140), (0, 240, 160, 340, 240))
    path = grey_set(tmp_path, "".join(yolo_line(*box, 400, 300) + "\n" for box in boxes))
    finding = fault("odd", path, "line 2", image=path, box=boxes[1][1:])
    (image,) = jpegs(page(tmp_path, [finding], {"train": load(tmp_path)}))
    # 200 x 200 pixels from (190, 100) on, drawn as 240 x 240
    for colour in (DETECTION, LABEL):
        rows, columns = (np.flatnonzero(near(image, colour).any(k)) for k in (1, 0))
        assert (columns.min(), columns.max()) == (approx(60), approx(180))
        assert (rows.min(), rows.max()) == (approx(72), approx(168))
    assert not near(image[90:150, 80:160], DETECTION).any()


def approx(pixels: int) -> object:
    return pytest.approx(pixels, abs=9)


def test_what_is_found_is_marked(tmp_path: Path) -> None:
    """A box past the frame, and boxes that training drops: of no size, and of no numbers."""
    grey_set(tmp_path, "0 0.3 0.3 0.2 0.2\n0 0.5 0.5 0 0\n0 nan 1 2\n1 .9 .7 .3 .2\n")
    file = DatasetFile.read(str(tmp_path))
    dataset = load(tmp_path)
    findings = [*left_out("train", dataset), *examine_labels(file, "train", dataset)]
    assert {f.where: f.image == dataset.files[0] for f in findings} == {
        f"line {k}": True for k in (2, 3, 4)
    }
    marked = {}
    for finding in findings:
        (image,) = jpegs(page(tmp_path, [finding], {"train": dataset}))
        marked[finding.where] = near(image, DETECTION).sum()
    assert marked["line 3"] == 0
    assert min(marked["line 2"], marked["line 4"]) > 20


def test_worst_images_first_and_each_once(tmp_path: Path) -> None:
    paths = [
        save(tmp_path / f"{k}.png", np.full((40, 40, 3), 25 * k, np.uint8))
        for k in range(PICTURES + 3)
    ]
    findings = [fault("odd", p, image=p) for k, p in enumerate(paths) for _ in range(k + 1)]
    shown = jpegs(page(tmp_path, findings, {}))
    assert [round(image.mean() / 25) for image in shown] == [8, 7, 6, 5, 4, 3]


def test_an_image_and_its_double(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    a, b = (tmp_path / f"images/train/{stem}.png" for stem in "ab")
    twin = fault("duplicate_image", a, problem=f"the same image as {b}", image=a, other=b)
    read = page(tmp_path, [twin], {"train": load(tmp_path)})
    assert len(jpegs(read)) == 2
    assert "b.png" in read.text


def test_images_that_cannot_be_shown_do_not_end_the_page(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    dataset = load(tmp_path)
    a, c, lost = (tmp_path / f"images/train/{name}" for name in ("a.png", "c.png", "d.jpg"))
    a.write_bytes(b"no image any more")
    findings = [
        fault("broken", a, image=a),
        fault("similar", c, problem=f"looks like {a}", image=c, other=a),
        fault("lost", lost, image=lost),
        fault("orphan_label_file", tmp_path / "labels/train/orphan.txt"),
    ]
    read = page(tmp_path, findings, {"train": dataset})
    assert len(jpegs(read)) == 1
    assert read.text.count("cannot be shown") == 3
    assert "orphan.txt" in read.text
