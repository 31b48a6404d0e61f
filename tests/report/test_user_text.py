"""Names that people give, in every picture and page: text, whatever matplotlib, HTML or Markdown
would make of it."""

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from textwrap import indent

import cv2
import numpy as np
import pytest
import yaml
from made_evidence import evidence_of
from matplotlib.figure import Figure
from matplotlib.text import Text

import cli
from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.report import charts
from boltbox.detector.report.charts import draw_labels, picture, short
from boltbox.detector.report.drawing import draw_boxes, encode_jpeg
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.table import class_table
from boltbox.detector.system.errors import InputError

NAMES = ["$\\frac{1}{$", "_<u>&amp;</u>$", "猫🐈‍⬛\\textbf{x", "**a** | `b` $x$"]
TAGS = {"u", "i", "script"}  # that the names would make


class Reader(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All texts of the figures that are saved, as they are drawn."""
    monkeypatch.setattr(charts, "DOTS", 40)
    seen: list[str] = []
    real = Figure.savefig

    def savefig(self: Figure, *args: object, **more: object) -> None:
        real(self, *args, **more)
        texts = [t for t in self.findobj(Text) if isinstance(t, Text) and t.get_text()]
        assert not any(t.get_parse_math() or t.get_usetex() for t in texts)
        seen.extend(t.get_text() for t in texts)

    monkeypatch.setattr(Figure, "savefig", savefig)
    yield seen
    assert not [text for text in seen if "mathdefault" in text]


def a_run(folder: Path, names: list[str] = NAMES) -> Path:
    """What `validate` would leave, with detections of each class, and images that are there."""
    data = folder / "data"
    (data / "images").mkdir(parents=True)
    (data / "labels").mkdir()
    for k in range(len(names)):
        cv2.imwrite(str(data / f"images/{k}.png"), np.full((40, 40, 3), 40 * k, np.uint8))
        (data / f"labels/{k}.txt").write_text(f"{k} 0.5 0.5 0.5 0.5\n")
    (data / "data.yaml").write_text(
        yaml.safe_dump({"path": str(data), "train": "images", "val": "images", "names": names})
    )
    run = folder / f"<i>{names[0][:8]}"
    claim(run, "validate")
    seen = [
        ([(10, 10, 30, 30, 0.9, (k + k // 2) % len(names))], [(10, 10, 30, 30, k)])
        for k in range(len(names))
    ]
    record = evidence_of(seen, names)
    record.files = [str(data / f"images/{k}.png") for k in range(len(names))]
    record.save(run / "detections.npz")
    figures = dict.fromkeys(
        ("P", "R", "mAP50", "mAP50-95", "fitness", "best_confidence", "coco/AP"), 0.5
    )
    rows = [{"name": name, "objects": 1, **figures} for name in names]
    head = {"command": "validate", "split": "val", "images": len(names), "objects": len(names)}
    (run / "metrics.json").write_text(json.dumps({**head, **figures, "per_class": rows}))
    config = {"data": {"dataset": str(data / "data.yaml"), "image_size": 64}, "run": str(run)}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_report(tmp_path: Path, drawn: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path)
    data = DatasetFile.read(str(tmp_path / "data/data.yaml"))
    draw_labels({"val": data.open("val")}, 64, run / "plots/labels.png")
    cli.main(["report", str(run)])
    read = Reader((run / "report.html").read_text(encoding="utf-8"))
    assert not TAGS & set(read.tags)
    for name in NAMES:
        assert name in read.text
        assert len([text for text in drawn if text.strip() == short(name).strip()]) >= 7, (
            "confusion, confidence, labels"
        )
    assert "detections.npz is" not in read.text
    assert "Glyph" not in capfd.readouterr().err


def test_compare(tmp_path: Path, here: Path, drawn: list[str]) -> None:
    runs = [a_run(tmp_path / "1", ["$\\frac{$", "b"]), a_run(tmp_path / "2", ["_$x$", "b"])]
    for run in runs:
        (run / "metrics.csv").write_text("epoch,val/mAP50\n0,0.1\n1,0.2\n")
    cli.main(["compare", *map(str, runs), "--run", str(tmp_path / "out")])
    read = Reader((tmp_path / "out/compare.html").read_text(encoding="utf-8"))
    assert "i" not in read.tags
    for run in runs:
        assert RunFiles.read(run).path.name in read.text
        assert f"{run.parent.name}/{run.name}" in drawn


def test_doctor(tmp_path: Path, here: Path) -> None:
    a_run(tmp_path)
    line = f"doctor --data.dataset {tmp_path / 'data/data.yaml'} --data.image_size 64 --run out"
    cli.main(line.split())
    read = Reader((here / "out/doctor.html").read_text(encoding="utf-8"))
    assert not TAGS & set(read.tags)
    assert all(name in read.text for name in NAMES)


def test_boxes_are_drawn_with_any_name() -> None:
    rows = np.array([[5, 60, 90, 95, 0.9, k] for k in range(len(NAMES))], float)
    image = np.zeros((100, 300, 3), np.uint8)
    pictures = [draw_boxes(image, row[None], NAMES) for row in rows]
    assert all(picture.any() for picture in pictures)
    assert not np.array_equal(pictures[0], pictures[1])


def test_tensor_board_shows_names_as_they_are() -> None:
    from tensorboard.plugin_util import markdown_to_safe_html

    figures = dict.fromkeys(("P", "R", "mAP50", "mAP50-95", "coco/AP"), 0.5) | {"objects": 1}
    rows = [{"name": name, **figures} for name in NAMES]
    table = class_table({**figures, "per_class": rows})
    read = Reader(markdown_to_safe_html(indent(table, "    ")))
    assert set(read.tags) == {"pre", "code"}
    assert table in read.text


def test_the_users_own_figures_keep_their_mathematics(tmp_path: Path) -> None:
    with picture(tmp_path / "ours.png", 2, 2) as drawn:
        drawn.text(0.1, 0.5, "$\\frac{$")
    assert Text(0, 0, "$x$").get_parse_math()


def test_an_image_that_no_jpeg_holds() -> None:
    with pytest.raises(InputError, match="no JPEG has 70000 x 2 pixels"):
        encode_jpeg(np.zeros((2, 70_000, 3), np.uint8))
