"""The doctor's page: whole, harmless, legible; pictures of the right images with the right boxes marked."""

import base64
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from made_datasets import as_coco, as_yolo, coco_with, lay_out, load, picture, save, voc_object, voc_xml, yolo_line

from detector.commands.doctor.charts import class_chart, count_histogram, log_histogram
from detector.commands.doctor.finding import Diagnosis, Finding
from detector.commands.doctor.gallery import Gallery
from detector.commands.doctor.page import FOLDED, PICTURES, SHOWN, write_page
from detector.commands.doctor.statistics import statistics
from detector.data.datasets import DetectionDataset
from detector.model.anchors import default_anchors

ANCHORS = np.array(default_anchors([3, 4, 5])).reshape(-1, 2)
VOID = {"meta", "img"}
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Reader(HTMLParser):
    """Every tag with its attributes, the text, and whether all that was opened is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = self.style = ""
        self.feed(html)
        self.close()
        assert self.open == [], "not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] == ["style"]:
            self.style += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page(tmp_path: Path, findings: list[Finding], datasets: dict[str, DetectionDataset]) -> Reader:
    figures, more = statistics(datasets, 640, ANCHORS)
    write_page(tmp_path / "out/doctor.html", Diagnosis(str(tmp_path), [*findings, *more], figures), datasets)
    html = (tmp_path / "out/doctor.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    return Reader(html)


def fault(
    kind: str, file: object, where: str = "", problem: str = "it is wrong", severity: str = "fault", split: str = "train"
) -> Finding:
    return Finding(severity, kind, split, str(file), where, problem)


# ---- Whole and harmless


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    """In the folder's name, file names, class names, splits, kinds and sentences."""
    stem = EVIL.replace("/", "\u2215")
    root = tmp_path / "<script>alert(2)<"
    save(root / "images/train/a.png", picture(40, 60))
    (root / "images/train/a.png").rename(root / f"images/train/{stem}.png")
    lay_out(root, {f"labels/train/{stem}.txt": "0 0.5 0.5 0.5 0.5\n", "data.yaml": "train: images/train\n"})
    with (root / "data.yaml").open("a") as file:
        file.write(f"names: ['{EVIL}', \"<b>'&amp;\"]\n")
    dataset = load(root)
    findings = [fault(EVIL, root / f"images/train/{stem}.png", EVIL, EVIL, split=EVIL), fault("k", EVIL), fault("k", "")]
    read = page(root, findings, {EVIL: dataset})
    assert read.count("script") == 0
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert read.count("img") == 1, "the picture, and none from a name"
    assert read.text.count(EVIL) >= 6
    assert read.text.count(stem) >= 2
    assert "<b>'&amp;" in read.text, "and only once"


def test_nothing_is_fetched(tmp_path: Path) -> None:
    as_yolo(tmp_path)
    read = page(tmp_path, [fault("a", tmp_path / "images/train/a.png")], {"train": load(tmp_path)})
    assert {tag for tag, _ in read.tags} <= {
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "h1",
            "h2",
            "h3",
            "div",
            "b",
            "p",
            "small",
            "span",
            "section",
            "code",
        ),
        *(
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "svg",
            "path",
            "rect",
            "text",
            "ol",
            "li",
            "figure",
            "figcaption",
            "img",
        ),
    }
    for _, attributes in read.tags:
        assert not attributes.keys() & {"href", "srcset", "action", "xlink:href"}
        assert (attributes.get("src") or "data:image/jpeg;base64,").startswith("data:image/jpeg;base64,")
    assert "url(" not in read.style
    assert "@import" not in read.style
    (policy,) = [a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are shown as escapes. OpenCV would end the process with a segmentation fault."""
    image = tmp_path / os.fsdecode(b"bad\xff.png")
    save(tmp_path / "good.png", picture(40, 60)).rename(image)
    read = page(tmp_path, [fault("odd", image), fault("gone", tmp_path / os.fsdecode(b"\xfe.jpg"))], {})
    assert "bad\\udcff.png" in read.text
    (shown,) = jpegs(read)
    assert shown.shape == (240, 360, 3)
    assert "cannot be shown: this image cannot be decoded ([Errno 2] No such file" in read.text


def test_nothing_found_and_nothing_known(tmp_path: Path) -> None:
    read = page(tmp_path, [], {})
    assert "Nothing was found" in read.text
    assert re.findall(r"(\d+)(fault|warning|note)s", read.text) == [("0", "fault"), ("0", "warning"), ("0", "note")]


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


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    found = re.findall(r"\d+", colour)
    channels = [int(v) for v in found] if colour.startswith("rgb") else [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    linear = [c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_in_both_modes(tmp_path: Path) -> None:
    """WCAG AA: 4.5 for text, 3 for the bars of the charts."""
    style = page(tmp_path, [], {}).style
    modes = [dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", style)]
    assert len(modes) == 2
    for mode in modes:
        for text in ("ink", "soft"):
            assert min(contrast(mode[text], mode["ground"]), contrast(mode[text], mode["panel"])) >= 4.5
    bars = dict(re.findall(r"\.(s\d) \{ fill: (rgb\([^)]*\))", style))
    assert bars.keys() == {"s0", "s1", "s2"}
    badges = re.findall(r"\.(?:fault|warning|note) \{ background: (rgb\([^)]*\)); color: (#\w+)", style)
    assert len(badges) == 3
    for ground, ink in badges:
        assert contrast(ground, "#000000" if ink == "#000" else "#ffffff") >= 4.5


# ---- Findings


def test_findings_by_kind(tmp_path: Path) -> None:
    many = [fault("odd_box", tmp_path / f"labels/{i}.txt", f"line {i}", f"problem {i}") for i in range(SHOWN + FOLDED + 7)]
    notes = [fault("small_thing", "", severity="note", split="val") for _ in range(3)]
    write_page(tmp_path / "doctor.html", Diagnosis("x", [*notes, *many]), {})
    html = (tmp_path / "doctor.html").read_text()
    read = Reader(html)
    assert read.text.index("Odd box") < read.text.index("Small thing"), "faults come first"
    assert read.count("li") == SHOWN + FOLDED + 3
    assert html.split("<details>")[0].count("<li>") == SHOWN
    assert f"{FOLDED} more" in read.text
    assert "7 further ones are in doctor.json" in read.text
    assert f"Files are in {tmp_path / 'labels'}" in read.text
    assert "19.txt, line 19: problem 19" in read.text
    assert "val: it is wrong" in read.text, "what has no file has a split"
    assert f"{len(many)}faults" in read.text
    assert '<ol start="21">' in html


# ---- Pictures


def jpegs(read: Reader) -> list[np.ndarray]:
    """(H, W, 3) uint8 RGB of each picture of the page."""
    found = [a["src"] or "" for tag, a in read.tags if tag == "img"]
    content = [np.frombuffer(base64.b64decode(s.removeprefix("data:image/jpeg;base64,")), np.uint8) for s in found]
    return [cv2.imdecode(c, cv2.IMREAD_COLOR_RGB) for c in content]


def grey_set(root: Path, boxes: list[tuple[float, float, float, float]], layout: str) -> tuple[DetectionDataset, Path]:
    """One even grey image of 400 x 300 pixels with these boxes; the file that names them."""
    image = np.full((300, 400, 3), 128, np.uint8)
    if layout == "yolo":
        save(root / "images/train/g.png", image)
        lines = "".join(yolo_line(0, *b, 400, 300) + "\n" for b in boxes)
        lay_out(root, {"labels/train/g.txt": lines, "data.yaml": "train: images/train\nnames: [cat, dog]\n"})
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


@pytest.mark.parametrize(("layout", "place"), [("yolo", "line 2"), ("voc", "object 2 (cat)"), ("coco", "annotation 102 (cat)")])
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
    """A box of no size is in no data set; it is kept with the reason why it was dropped. So is one that leaves the image."""
    _, file = grey_set(tmp_path, [(40, 60, 120, 140)], "yolo")
    file.write_text(file.read_text() + "0 0.5 0.5 0 0\n0 1.5 0.5 0.2 0.2\n0 nan 1 2\n")
    dataset = load(tmp_path)
    findings = [fault("zero", file, "line 2"), fault("past", file, "line 3"), fault("words", file, "line 4")]
    zero, past, words = jpegs(page(tmp_path, findings, {"train": dataset}))
    assert black_and_white(zero)[130:170, 180:220].sum() > 100, "around the middle"
    assert black_and_white(past)[:, 390:].sum() > 20, "at the edge where it left"
    assert black_and_white(words)[150:].sum() == 0


def test_objects_of_an_image(tmp_path: Path) -> None:
    """Where the finding names the image itself: COCO's objects by number, or none."""
    dataset, _ = grey_set(tmp_path, [(40, 60, 120, 140), (240, 160, 340, 240)], "coco")
    image = tmp_path / "photos/a.png"
    findings = [fault("one", image, "object 2"), fault("all", image), fault("beyond", image, "object 9")]
    one, whole, beyond = (
        black_and_white(x)[170:250, 230:350].sum() for x in jpegs(page(tmp_path, findings, {"train": dataset}))
    )
    assert one > 300
    assert whole == beyond == 0


def test_worst_images_first_and_each_once(tmp_path: Path) -> None:
    for i in range(PICTURES + 3):
        save(tmp_path / f"images/train/{i}.png", picture(40 + i, 60, i))
        lay_out(tmp_path, {f"labels/train/{i}.txt": "0 0.5 0.5 0.5 0.5\n"})
    lay_out(tmp_path, {"data.yaml": "train: images/train\nnames: [a]\n"})
    dataset = load(tmp_path)
    findings = [fault("odd", tmp_path / f"labels/train/{i}.txt", "line 1") for i in range(PICTURES + 3) for _ in range(i + 1)]
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
    # 60 x 40 drawn six times as large, 37 x 100 four times (at least 320 px), brought to the height of the first
    assert image.shape == (240, 360 + round(148 * 240 / 400), 3)


def test_images_that_cannot_be_shown_do_not_end_the_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    as_yolo(tmp_path)
    dataset = load(tmp_path)
    (tmp_path / "images/train/a.png").write_bytes(b"no image any more")
    lay_out(tmp_path, {"images/train/lost.jpg": "nor this", "labels/train/orphan.txt": "0 0.5 0.5 0.5 0.5"})
    findings = [
        fault("broken", tmp_path / "images/train/a.png"),
        fault("unreadable_image", tmp_path / "images/train/b.png", problem="the decoder crashed on it (SIGSEGV)"),
        fault("similar", tmp_path / "images/train/c.png", problem=f"looks like {tmp_path / 'images/train/b.png'}"),
        fault("lost", tmp_path / "images/train/lost.jpg"),
        fault("orphan_label_file", tmp_path / "labels/train/orphan.txt"),
        fault("json", tmp_path / "nowhere.json", "annotation 3 (cat)"),
    ]
    read = page(tmp_path, findings, {"train": dataset})
    assert read.count("img") == 0
    assert read.text.count("cannot be shown: this image cannot be decoded") == 2
    assert read.text.count("cannot be shown: the decoder crashed on it (SIGSEGV)") == 2, "it is not opened again"
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
    read = page(tmp_path, [fault("odd", tmp_path / "train.json", "annotation 1 (cat)")], {"train": dataset})
    assert "annotation 1 (cat)" in read.text


def test_a_class_without_a_name_and_a_crowd(tmp_path: Path) -> None:
    """Both are drawn; more than 25 boxes without their names."""
    dataset, file = grey_set(tmp_path, [(10 * k, 10, 10 * k + 8, 90) for k in range(30)], "yolo")
    dataset.labels[0].classes[:] = 7
    assert len(jpegs(page(tmp_path, [fault("odd", file, "line 1")], {"train": dataset}))) == 1


# ---- Charts


def bars(svg: str) -> list[tuple[str, float, float]]:
    """What each bar says of itself, its width and its height."""
    root = ElementTree.fromstring(svg)
    return [(r.findtext("title", ""), float(r.get("width", 0)), float(r.get("height", 0))) for r in root.iter("rect")]


def test_bars_are_as_tall_as_their_shares() -> None:
    svg = log_histogram("x", [1, 2, 4, 8, 16], {"train": [0, 6, 2, 0], "val": [0, 1, 1, 2]}, {2: "two", 8: "eight"}, (4,))
    drawn = bars(svg)
    assert [what for what, _, _ in drawn] == [
        "train, 2 to 4: 6 (75.0%)",
        "train, 4 to 8: 2 (25.0%)",
        "val, 2 to 4: 1 (25.0%)",
        "val, 4 to 8: 1 (25.0%)",
        "val, 8 to 16: 2 (50.0%)",
    ]
    heights = np.array([height for _, _, height in drawn])
    np.testing.assert_allclose(heights / heights[0], [1, 1 / 3, 1 / 3, 1 / 3, 2 / 3], atol=1e-3)
    texts = [(t.text, float(t.get("x", 0))) for t in ElementTree.fromstring(svg).iter("text")]
    axis = dict(texts)
    assert {"two", "eight", "4", "75%", "38%"} == set(axis)
    assert axis["4"] - axis["two"] == pytest.approx(axis["eight"] - axis["4"], abs=0.2), "a logarithmic axis"


def test_numbers_of_objects() -> None:
    svg = count_histogram("x", [0, 1, 2, 4, 8], {"train": [3, 0, 1, 0]})
    assert [what for what, _, _ in bars(svg)] == ["train, 0: 3 (75.0%)", "train, 2-3: 1 (25.0%)"]
    assert count_histogram("x", [0, 1, 2], {"train": [0, 0]}) == count_histogram("x", [0, 1, 2], {}) == ""


def test_classes_by_number() -> None:
    svg = class_chart("x", ["few", "many", "none"], {"train": [2, 8, 0], "val": [0, 4, 0]})
    drawn = [(what, width) for what, width, _ in bars(svg)]
    assert [what for what, _ in drawn] == [
        "many, train: 8",
        "many, val: 4",
        "few, train: 2",
        "few, val: 0",
    ]
    assert "1 classes without a box" in svg
    widths = np.array([width for _, width in drawn])
    np.testing.assert_allclose(widths / widths[0], [1, 0.5, 0.25, 0], atol=1e-2)
    many = class_chart("x", [f"class {k}" for k in range(300)], {"train": list(range(300))})
    assert len(bars(many)) == 40
    assert "... 259 classes ..." in many
    assert "class 299" in many
    assert "class 1" in many
    assert class_chart("x", ["a"], {"train": [0]}) == ""
