"""The doctor's page: whole, harmless, legible, with its findings by kind and its charts."""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from made_datasets import as_yolo, lay_out, load, picture, save
from made_page import Reader, fault, jpegs, page

from boltbox.detector.commands.doctor.charts import class_chart, count_histogram, log_histogram
from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.page import FOLDED, SHOWN, write_page

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
        fault(EVIL, root / f"images/train/{stem}.png", EVIL, EVIL, split=EVIL),
        fault("k", EVIL),
        fault("k", ""),
    ]
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
        assert (attributes.get("src") or "data:image/jpeg;base64,").startswith(
            "data:image/jpeg;base64,"
        )
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
    read = page(
        tmp_path, [fault("odd", image), fault("gone", tmp_path / os.fsdecode(b"\xfe.jpg"))], {}
    )
    assert "bad\\udcff.png" in read.text
    (shown,) = jpegs(read)
    assert shown.shape == (240, 360, 3)
    assert "cannot be shown: this image cannot be decoded ([Errno 2] No such file" in read.text


def test_nothing_found_and_nothing_known(tmp_path: Path) -> None:
    read = page(tmp_path, [], {})
    assert "Nothing was found" in read.text
    assert re.findall(r"(\d+)(fault|warning|note)s", read.text) == [
        ("0", "fault"),
        ("0", "warning"),
        ("0", "note"),
    ]


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
    channels = (
        [int(v) for v in found]
        if colour.startswith("rgb")
        else [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    )
    linear = [
        c / 255 / 12.92 if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4
        for c in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_in_both_modes(tmp_path: Path) -> None:
    """WCAG AA: 4.5 for text, 3 for the bars of the charts."""
    style = page(tmp_path, [], {}).style
    modes = [
        dict(re.findall(r"--(\w+): (#\w+);", block))
        for block in re.findall(r":root \{(.*?)\}", style)
    ]
    assert len(modes) == 2
    for mode in modes:
        for text in ("ink", "soft"):
            assert (
                min(contrast(mode[text], mode["ground"]), contrast(mode[text], mode["panel"]))
                >= 4.5
            )
    bars = dict(re.findall(r"\.(s\d) \{ fill: (rgb\([^)]*\))", style))
    assert bars.keys() == {"s0", "s1", "s2"}
    badges = re.findall(
        r"\.(?:fault|warning|note) \{ background: (rgb\([^)]*\)); color: (#\w+)", style
    )
    assert len(badges) == 3
    for ground, ink in badges:
        assert contrast(ground, "#000000" if ink == "#000" else "#ffffff") >= 4.5


def test_findings_by_kind(tmp_path: Path) -> None:
    many = [
        fault("odd_box", tmp_path / f"labels/{i}.txt", f"line {i}", f"problem {i}")
        for i in range(SHOWN + FOLDED + 7)
    ]
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


def bars(svg: str) -> list[tuple[str, float, float]]:
    """What each bar says of itself, its width and its height."""
    root = ElementTree.fromstring(svg)
    return [
        (r.findtext("title", ""), float(r.get("width", 0)), float(r.get("height", 0)))
        for r in root.iter("rect")
    ]


def test_bars_are_as_tall_as_their_shares() -> None:
    svg = log_histogram(
        "x",
        [1, 2, 4, 8, 16],
        {"train": [0, 6, 2, 0], "val": [0, 1, 1, 2]},
        {2: "two", 8: "eight"},
        (4,),
    )
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
    assert axis["4"] - axis["two"] == pytest.approx(axis["eight"] - axis["4"], abs=0.2), (
        "a logarithmic axis"
    )


def test_numbers_of_objects() -> None:
    svg = count_histogram("x", [0, 1, 2, 4, 8], {"train": [3, 0, 1, 0]})
    assert [what for what, _, _ in bars(svg)] == ["train, 0: 3 (75.0%)", "train, 2-3: 1 (25.0%)"]
    assert (
        count_histogram("x", [0, 1, 2], {"train": [0, 0]})
        == count_histogram("x", [0, 1, 2], {})
        == ""
    )


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
