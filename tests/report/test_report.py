"""What a run leaves for its report, and the page: whole, harmless, legible in a browser."""

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from shlex import split

import cv2
import numpy as np
import pytest
import yaml
from small_fit import small_fit

import boltbox.callbacks.report
import cli
from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.evaluation.class_metrics import RECALLS, class_metrics
from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.report import charts
from boltbox.detector.report.charts import draw_confusion
from boltbox.detector.system.errors import InputError

QUICK = split(
    "--data.image_size 64 --data.batch_size 8 --data.workers 0 --model.network.width_multiple 0.125 --model.network.depth_multiple 0.1 --model.network.levels [5] --doctor.enabled false"
)
QUICK += split(
    "--trainer.enable_progress_bar false --trainer.precision 32-true --trainer.accelerator cpu"
)
PLOTS = ("curves", "confidence", "confusion_matrix", "labels")
HEADINGS = [
    "Metrics",
    "Options that differ from the defaults",
    "Machine",
    "Curves",
    "Confidence",
    "Confusion",
    "Errors",
    "Largest missed objects",
    "Anchors",
    "Labels",
    "Training batches, as the network sees them",
    "Validation: labels, then predictions",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs with its report, not to be written to."""
    run = tmp_path_factory.mktemp("reported") / "run"
    line = f"fit --data.dataset {small_data} --trainer.max_epochs 2 --run {run}"
    cli.main([*line.split(), *QUICK])
    return run


@pytest.fixture
def copy(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With charts that are quick to draw."""
    monkeypatch.setattr(charts, "DOTS", 30)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Reader(HTMLParser):
    """Tags with their attributes; the text outside the style sheet."""

    def __init__(self, run: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.headings = []
        self.feed(
            re.sub(
                "<style>.*?</style>",
                "",
                (run / "report.html").read_text(encoding="utf-8"),
                flags=re.DOTALL,
            )
        )

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.tags[-1:] and self.tags[-1][0] == "h2":
            self.headings += [data.strip()] if data.strip() else []


def test_the_detections_give_the_figures(trained: Path) -> None:
    figures = json.loads((trained / "metrics.json").read_text())
    record = PredictionRecord.load(trained / "detections.npz")
    assert (record.command, record.epoch) == ("fit", figures["epoch"])
    assert all(Path(file).is_file() for file in record.files)
    found = class_metrics(record.true_positives(), record.score, record.kind, record.label_kind)
    for name, value in found.summary().items():
        assert value == pytest.approx(figures[name], abs=1e-12), name
    assert [(record.names[c], n) for c, n in zip(found.classes, found.objects, strict=True)] == [
        (row["name"], row["objects"]) for row in figures["per_class"]
    ]
    for curve, row in zip(found.precision_at_recall, figures["per_class"], strict=True):
        assert np.trapezoid(curve, RECALLS) == pytest.approx(row["mAP50"], abs=1e-12)


def test_what_differs_from_the_defaults(trained: Path) -> None:
    """Also after a resume, when the checkpoint's own options are the defaults of the parser."""
    changed = yaml.safe_load((trained / "changed.yaml").read_text())
    assert changed["model.network.width_multiple"] == 0.125
    assert changed["trainer.max_epochs"] == 2
    assert not {
        name for name in changed if name.partition(".")[0] in ("warmup", "ema", "run", "ckpt_path")
    }
    machine = json.loads((trained / "machine.json").read_text())
    assert machine["command"] == "fit"
    assert machine["versions"].keys() >= {"torch", "lightning"}


@pytest.mark.parametrize(
    "fault",
    ["text", "pickle", "empty", "half"],
)
def test_other_files_are_no_detections(trained: Path, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "detections.npz"
    content = dict(np.load(trained / "detections.npz"))
    content |= {
        "pickle": {"box": np.array([{}], object)},
    }.get(fault, {})
    np.savez(path, **content)
    if fault in ("text", "empty"):
        path.write_text("detections" if fault == "text" else "")
    if fault == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=f"^{path}: not a file of detections"):
        PredictionRecord.load(path)


def test_the_page_is_whole(trained: Path) -> None:
    page = Reader(trained)
    assert (trained / "report.html").stat().st_size < 6e6
    assert {p.stem for p in (trained / "plots").iterdir()} >= {*PLOTS, "train_batch0", "val_labels"}
    for picture in (trained / "plots").iterdir():
        image = cv2.imread(str(picture))
        assert image is not None
        assert image.std() > 5, picture
    titles = [line.strip() for line in page.headings]
    # two epochs may find nothing that is confident enough to be wrong
    assert [title for title in titles if title in HEADINGS] == HEADINGS
    shown = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert set(shown) >= {"Curves", "Confidence", "Confusion", "Labels"}
    assert shown.count("Training batches, as the network sees them") == 3
    for text in (
        "model.network.width_multiple",
        "poor localisation",
        "best epoch",
        "disc",
        "triangle",
    ):
        assert text in page.text, text


def test_nothing_is_fetched_or_run(trained: Path) -> None:
    tags = Reader(trained).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "object", "embed", "form"}
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("src") or "data:image/").startswith("data:image/")
        assert (attributes.get("href") or "#").startswith("#")


def test_what_a_run_lacks_is_left_out(copy: Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("detections.npz", "changed.yaml"):
        (copy / name).unlink()
    (copy / "anchors.json").unlink()
    cli.main(["report", str(copy)])
    assert f"report:    {copy / 'report.html'} (" in capsys.readouterr().out
    page = Reader(copy)
    assert page.headings == [
        "Metrics",
        "Machine",
        "Curves",
        "Detections",
        "Labels",
        "Training batches, as the network sees them",
        "Validation: labels, then predictions",
    ]
    assert "detections.npz is missing" in page.text


def test_detections_of_another_evaluation_are_not_used(copy: Path) -> None:
    figures = json.loads((copy / "metrics.json").read_text())
    (copy / "metrics.json").write_text(json.dumps(figures | {"epoch": 77}))
    cli.main(["report", str(copy)])
    assert "is of another evaluation" in Reader(copy).text


def test_images_that_are_gone(copy: Path, small_data: Path, tmp_path: Path) -> None:
    record = PredictionRecord.load(copy / "detections.npz")
    record.score = np.linspace(1, 0.5, len(record.score), dtype=np.float32)
    record.files = [str(tmp_path / "gone <b>.png"), *record.files[1:]]
    record.save(copy / "detections.npz")
    cli.main(["report", str(copy)])
    page = Reader(copy)
    assert "cannot be shown: " in page.text
    assert "gone <b>.png" in page.text, "escaped"


def test_as_many_pictures_as_are_counted(copy: Path) -> None:
    """Also where one image has several errors; of many the page says how many it shows."""
    record = PredictionRecord.load(copy / "detections.npz")
    for number, text in ((4, "4 in all"), (30, "24 of 30")):
        record.box = np.tile(np.float32([0, 0, 2, 2]), (number, 1))
        record.score = np.linspace(0.9, 0.6, number, dtype=np.float32)
        record.kind = np.zeros(number, record.kind.dtype)
        record.image = np.repeat([0, 1], [3, number - 3]).astype(record.image.dtype)
        record.save(copy / "detections.npz")
        cli.main(["report", str(copy)])
        page = (copy / "report.html").read_text()
        section = page.partition(">Most confident false positives</h2>")[2].partition("</section>")[
            0
        ]
        assert f"<p>{text}, " in section
        assert section.count("<figure>") == min(number, 24)


@pytest.mark.parametrize("what", ["no folder", "an empty folder", "no figures", "half a file"])
def test_a_folder_without_a_run(what: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = tmp_path / "run"
    if what != "no folder":
        run.mkdir()
    if what in ("no figures", "half a file"):
        claim(run, "fit")
        (run / "config.yaml").write_text("data: {}\n")
    if what == "half a file":
        (run / "metrics.json").write_text('{"command": "fi')
    with pytest.raises(SystemExit) as left:
        cli.main(["report", str(run)])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {run}")
    assert told.count("\n") == 1


def test_validate_has_a_report_and_never_fails_for_it(
    trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(charts, "DOTS", 30)
    checkpoint = trained / "checkpoints/last.ckpt"
    line = f"validate --ckpt_path {checkpoint} --trainer.enable_progress_bar false".split()
    cli.main([*line, "--run", "one"])
    assert "report:    one/report.html\n" in capsys.readouterr().out
    assert "metrics of 8 images" in Reader(here / "one").text

    def fail(*_: object) -> None:
        raise RuntimeError("a flaw\nof ours")

    monkeypatch.setattr(boltbox.callbacks.report, "write_report", fail)
    cli.main([*line, "--run", "two"])
    told = "warning: no report (RuntimeError: a flaw of ours); try again with: python cli.py report two"
    assert told in capsys.readouterr().out
    assert json.loads((here / "two/metrics.json").read_text())["command"] == "validate"


def test_a_fit_without_validation_has_a_report(small_data: Path, here: Path) -> None:
    given = "--trainer.max_epochs 1 --trainer.limit_val_batches 0 --report.enabled true"
    cli.main([*small_fit(small_data, here / "run"), *given.split()])
    assert (here / "run/report.html").is_file()


def test_nobody_looked(tmp_path: Path) -> None:
    """No image has a label, none a detection."""
    DetectionMetrics(1).compute().record.save(tmp_path / "detections.npz")
    record = PredictionRecord.load(tmp_path / "detections.npz")
    assert len(record.true_positives()) == len(record.files) == 0


@pytest.mark.parametrize("classes", [1, 20, 10_000])
def test_the_confusion_matrix_fits_its_classes(classes: int, tmp_path: Path) -> None:
    """Cells have room for what stands in them, and no letter leaves the picture: its outermost
    pixels are white."""
    names = [f"class number {k} with a name" for k in range(classes)]
    seen = np.arange(min(classes, 300))
    draw_confusion(np.stack((seen, seen), 1).repeat(7, 0), names, tmp_path / "matrix.png")
    image = cv2.imread(str(tmp_path / "matrix.png"), cv2.IMREAD_GRAYSCALE)
    height, width = image.shape
    assert max(height, width) < 4000
    assert min(height, width) > (1100 if classes >= 80 else 250)
    assert min(e.min() for e in (image[0], image[-1], image[:, 0], image[:, -1])) > 240


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_it(trained: Path, tmp_path: Path) -> None:
    """No message on the console, a picture that is not blank, and nothing wider than the window,
    be it wide or narrow. A window of Chromium has 500 px at least, so the page is in two frames; a
    copy with a script tells how wide it is."""
    widths = (1100, 400)
    page = (trained / "report.html").read_text(encoding="utf-8")
    cut = (
        "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length"
    )
    widest = "document.documentElement.scrollWidth"
    tell = f"<script>parent.postMessage([innerWidth, {widest}, {cut}] + ';', '*')</script></body>"
    copy = re.sub("<meta http-equiv[^>]*>", "", page).replace("</body>", tell)
    (tmp_path / "copy.html").write_text(copy, encoding="utf-8")
    listen = "<script>onmessage = e => { document.title += e.data }</script>"

    def frames(source: object) -> str:
        style = "position:absolute;top:0;border:0;height:2400px"
        places = [
            f"{style};left:{at}px;width:{w}px" for at, w in zip((0, 1100), widths, strict=True)
        ]
        return "".join(f'<iframe src="{source}" style="{place}"></iframe>' for place in places)

    (tmp_path / "told.html").write_text(f"<body>{listen}{frames('copy.html')}")
    (tmp_path / "shown.html").write_text(f"<body>{frames(trained / 'report.html')}")

    def browse(name: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [
            str(CHROMIUM),
            *split(
                "--headless --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr --v=0 --window-size=1680,2400"
            ),
        ]
        command += [f"--user-data-dir={tmp_path / 'profile'}", *options]
        return subprocess.run(
            [*command, f"file://{tmp_path / name}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )

    shown = browse("shown.html", f"--screenshot={tmp_path / 'shot.png'}")
    assert "CONSOLE" not in shown.stderr
    picture = cv2.imread(str(tmp_path / "shot.png"))
    for image in (picture[:, :1100], picture[:, 1100:]):
        assert image[:600].std() > 10
        assert image[1800:].std() > 10
    page = browse("told.html", "--dump-dom", "--virtual-time-budget=2000").stdout
    answers = re.findall(r"(\d+),(\d+),(\d+);", page)
    told = {int(width): int(needed) for width, needed, _ in answers}
    assert sorted(told) == sorted(widths), "a frame told nothing"
    assert all(needed <= width for width, needed in told.items())
    assert ("1100", "0") in {(width, number) for width, _, number in answers}, "a table is cut off"
