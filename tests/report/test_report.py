"""What a run leaves for its report, and the page: whole, harmless, and its names text, whatever
matplotlib, HTML or Markdown would make of them."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import yaml
from made_runs import read, train, type_line
from matplotlib.figure import Figure
from matplotlib.text import Text

import boltbox.callbacks.report
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.evaluation.class_metrics import RECALLS, class_metrics
from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.inference.detections import draw_boxes, encode_jpeg
from boltbox.detector.report import charts
from boltbox.detector.report.charts import (
    draw_confusion,
    draw_curves,
    draw_labels,
    draw_panels,
    picture,
    short,
)
from boltbox.detector.report.table import class_table
from boltbox.detector.system.errors import InputError

HEADINGS = """\
Metrics
Options that differ from the defaults
Machine
Curves
Confidence
Confusion
Errors
Largest missed objects
Anchors
Labels
Training batches, as the network sees them
Last validation: labels, then predictions""".splitlines()
NAMES = ["$\\frac{1}{$", "_<u>&amp;</u>$", "猫🐈‍⬛\\textbf{x", "**a** | `b` $x$", "<b>"]


class Page(HTMLParser):
    """The text of a page, its headings, and its tags with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.text = ""
        self.headings = []
        self.feed(page.read_text(encoding="utf-8"))
        names = {tag for tag, _ in self.tags}
        assert not names & {"script", "link", "iframe", "object", "embed", "form", "u", "i", "b"}
        for _, attributes in self.tags:  # nothing is fetched or run
            for name in attributes:
                assert not name.startswith("on")
            assert (attributes.get("src") or "data:image/").startswith("data:image/")
            assert (attributes.get("href") or "#").startswith("#")

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data
        if self.tags and self.tags[-1][0] == "h2" and data.strip():
            self.headings.append(data.strip())


@pytest.fixture(scope="module")
def trained(small_data, tmp_path_factory):
    """A run of two epochs with its report, not to be written to."""
    run = tmp_path_factory.mktemp("reported") / "run"
    options = "--trainer.max_epochs 2 --report.enabled true --pictures.enabled true"
    train(small_data, run, f"{options} --autoanchor.enabled true")
    return run


@pytest.fixture(autouse=True)
def small_charts(monkeypatch):
    """Quick to draw."""
    monkeypatch.setattr(charts, "DOTS", 30)


@pytest.fixture
def drawn(monkeypatch):
    """All texts of the figures that are saved, as they are drawn."""
    seen = []
    real = Figure.savefig

    def savefig(self, *args, **more):
        real(self, *args, **more)
        texts = [t for t in self.findobj(Text) if isinstance(t, Text) and t.get_text()]
        for t in texts:
            assert not t.get_parse_math()
            assert not t.get_usetex()
        seen.extend(t.get_text().strip() for t in texts)

    monkeypatch.setattr(Figure, "savefig", savefig)
    yield seen
    for text in seen:
        assert "mathdefault" not in text


@pytest.fixture
def renamed(trained, tmp_path):
    """A copy of the run with these names, in a folder that has one too."""
    run = Path(shutil.copytree(trained, tmp_path / "<i>run"))
    record = PredictionRecord.load(run / "detections.npz")
    record.names = NAMES
    record.save(run / "detections.npz")
    content = read(run / "metrics.json")
    for row, name in zip(content["per_class"], NAMES, strict=True):
        row["name"] = name
    (run / "metrics.json").write_text(json.dumps(content))
    return run


def test_what_a_fit_leaves(trained):
    """The detections give the metrics; the page is whole."""
    content = read(trained / "metrics.json")
    record = PredictionRecord.load(trained / "detections.npz")
    assert (record.command, record.epoch) == ("fit", content["epoch"])
    assert all(Path(file).is_file() for file in record.files)
    found = class_metrics(record.true_positives(), record.score, record.kind, record.label_kind)
    for name, value in found.summary().items():
        assert value == pytest.approx(content[name], abs=1e-12), name
    assert [(record.names[c], n) for c, n in zip(found.classes, found.objects, strict=True)] == [
        (row["name"], row["objects"]) for row in content["per_class"]
    ]
    for curve, row in zip(found.precision_at_recall, content["per_class"], strict=True):
        assert np.trapezoid(curve, RECALLS) == pytest.approx(row["mAP50"], abs=1e-12)
    page = Page(trained / "report.html")
    # two epochs may find nothing that is confident enough to be wrong
    assert [title for title in page.headings if title in HEADINGS] == HEADINGS
    for file in (trained / "plots").iterdir():
        image = cv2.imread(str(file))
        assert image.std() > 5, file
    shown = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert {*shown} >= {"Curves", "Confidence", "Confusion", "Labels"}
    assert shown.count("Training batches, as the network sees them") == 3
    for text in ("model.network.width_multiple", "poor localisation", "best epoch", "triangle"):
        assert text in page.text, text
    changed = read(trained / "changed.yaml")
    assert changed["trainer.max_epochs"] == 2
    assert not {name.partition(".")[0] for name in changed} & {"warmup", "ema", "run", "ckpt_path"}


def test_what_a_run_lacks_is_left_out(trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    for name in ("detections.npz", "changed.yaml", "anchors.json"):
        (run / name).unlink()
    type_line(f"report {run}")
    page = Page(run / "report.html")
    left = [*HEADINGS[:1], *HEADINGS[2:4], "Detections", *HEADINGS[9:]]
    assert page.headings == left
    assert "detections.npz is missing" in page.text


def test_names_are_text(renamed, small_data, tmp_path, drawn, capfd):
    """In pages, charts and drawn boxes, of classes, runs and files."""
    data = tmp_path / "data.yaml"
    content = read(small_data) | {"path": str(small_data.parent), "names": NAMES}
    data.write_text(yaml.safe_dump(content))
    draw_labels({"val": DatasetFile.read(str(data)).open("val")}, renamed / "plots/labels.png")
    type_line(f"report {renamed}")
    page = Page(renamed / "report.html")
    assert {*page.headings} >= {"Metrics", "Confidence", "Confusion", "Errors", "Labels"}
    for name in NAMES:
        assert name in page.text
        assert drawn.count(short(name).strip()) >= 7, "confusion, confidence, labels"
    type_line(f"doctor --data.dataset {data} --data.image_size 64 --run {tmp_path / 'doctor'}")
    page = Page(tmp_path / "doctor/doctor.html")
    assert all(name in page.text for name in NAMES)
    image = np.zeros((100, 300, 3), np.uint8)
    pictures = [
        draw_boxes(image.copy(), np.array([[5, 60, 90, 95, 0.9, k]]), NAMES) for k in range(4)
    ]
    for letters in (["ß"], ["ж"]):
        pictures.append(draw_boxes(image.copy(), np.array([[5, 60, 90, 95, 0.9, 0]]), letters))
    assert len({drawn.tobytes() for drawn in pictures} - {image.tobytes()}) == 6
    assert "Glyph" not in capfd.readouterr().err
    with picture(tmp_path / "ours.png", 2, 2) as figure:
        figure.text(0.1, 0.5, "$\\frac{$")
    assert Text(0, 0, "$x$").get_parse_math(), "the user's own figures"


def test_curves_of_one_epoch(tmp_path, drawn):
    """No epoch 0.96; long names differ at their ends."""
    lines = {f"run with a long name {k}": [(1.0, 0.5)] for k in range(2)}
    draw_panels({"val/P": lines}, tmp_path / "curves.png")
    draw_curves([{"epoch": 0, "lr/bias": 0.5, "lr/backbone_bias": 0.1}], tmp_path / "curves.png")
    assert not any(text.startswith("0.9") for text in drawn)
    assert {"run with a…ng name 0", "run with a…ng name 1", "lr/backbone_bias"} <= {*drawn}


def test_tensor_board_shows_names_as_they_are(renamed):
    from tensorboard.plugin_util import markdown_to_safe_html

    table = class_table(read(renamed / "metrics.json"))
    page = markdown_to_safe_html(indent(table, "    "))
    assert page.count("<") == 4  # <pre><code> and their ends
    parser = HTMLParser()
    texts = []
    parser.handle_data = texts.append
    parser.feed(page)
    assert table in "".join(texts)


def test_errors_with_their_images(renamed, tmp_path):
    """As many crops as are counted, up to 24, also of an image with several, and none of a true
    positive; one that is gone is named. Detections of another evaluation are not used."""
    record = PredictionRecord.load(renamed / "detections.npz")
    label = np.flatnonzero(record.label_image)[0]  # of image 1
    record.files[0] = str(tmp_path / "gone <b>.png")
    for number, text in ((4, "4 in all"), (30, "24 of 30")):
        record.box = np.tile(np.float32([0, 0, 2, 2]), (number + 1, 1))
        record.score = np.linspace(0.9, 0.6, number + 1, dtype=np.float32)
        record.kind = np.zeros(number + 1, record.kind.dtype)
        record.image = np.repeat([0, 1], [3, number - 2]).astype(record.image.dtype)
        record.box[-1] = record.label_box[label]
        record.kind[-1] = record.label_kind[label]
        record.save(renamed / "detections.npz")
        type_line(f"report {renamed}")
        page = (renamed / "report.html").read_text()
        section = page.partition(">Most confident false positives</h2>")[2]
        section = section.partition("</section>")[0]
        assert f"<p>{text}, " in section
        assert section.count("<figure>") == min(number, 24)
        assert section.count("gone &lt;b&gt;.png") >= 3
    (renamed / "metrics.json").write_text(
        json.dumps(read(renamed / "metrics.json") | {"epoch": 77})
    )
    type_line(f"report {renamed}")
    assert "Detections" in Page(renamed / "report.html").headings


def test_other_files_are_no_detections(tmp_path):
    path = tmp_path / "detections.npz"
    record = DetectionMetrics(1).compute().record  # nobody looked
    record.save(path)
    assert len(PredictionRecord.load(path).true_positives()) == 0
    whole = path.read_bytes()
    record.box = np.array([{}], object)
    record.save(path)
    for content in (path.read_bytes(), b"detections", b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"^{path}: "):
            PredictionRecord.load(path)


def test_validate_has_a_report_and_never_fails_for_it(trained, here, monkeypatch, capsys):
    checkpoint = trained / "checkpoints/last.ckpt"
    type_line(f"validate --ckpt_path {checkpoint} --trainer.enable_progress_bar false --run one")
    assert "report:    one/report.html\n" in capsys.readouterr().out
    assert "metrics of 8 images" in Page(here / "one/report.html").text

    monkeypatch.setattr(boltbox.callbacks.report, "write_report", lambda run: 1 / 0)
    trainer = SimpleNamespace(default_root_dir="two", is_global_zero=True, datamodule=None)
    boltbox.callbacks.report.Report().on_test_end(trainer, None)
    assert "no report (ZeroDivisionError: division by zero)" in capsys.readouterr().out


@pytest.mark.parametrize("classes", [1, 20])
def test_the_confusion_matrix_fits_its_classes(classes, tmp_path, monkeypatch):
    """Cells have room for what stands in them, and no letter leaves the picture: its outermost
    pixels are white."""
    monkeypatch.setattr(charts, "DOTS", 110)
    names = [f"class number {k} with a name" for k in range(classes)]
    seen = np.arange(classes)
    draw_confusion(np.stack((seen, seen), 1).repeat(7, 0), names, tmp_path / "matrix.png")
    image = cv2.imread(str(tmp_path / "matrix.png"), cv2.IMREAD_GRAYSCALE)
    assert 250 < min(image.shape) <= max(image.shape) < 4000
    assert min(e.min() for e in (image[0], image[-1], image[:, 0], image[:, -1])) > 240


def test_an_image_that_no_jpeg_holds():
    with pytest.raises(InputError, match="70000 x 2 pixels"):
        encode_jpeg(np.zeros((2, 70_000, 3), np.uint8))
