"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import cv2
import numpy as np

from detector.data.datasets import DetectionDataset
from detector.data.transforms.letterbox import round_up
from detector.evaluation.error_kinds import (
    BACKGROUND,
    DUPLICATE,
    HIT,
    SIZES,
    TOLD,
    classify,
    label_suspects,
    largest,
    surest,
    tally,
)
from detector.evaluation.prediction_record import PredictionRecord
from detector.report import html as page
from detector.report.confidence import draw_confidence, precision_at_recall
from detector.report.confusion import commonest, confusion, draw_confusion
from detector.report.crops import Crop, Crops, sheet
from detector.report.curves import draw_epochs, draw_iterations
from detector.report.drawing import write_image
from detector.report.error_chart import WRONG, draw_errors
from detector.report.folder import RunFiles
from detector.report.labels import draw_labels
from detector.system.atomic_file import write_atomically
from detector.system.host import described

SURE = 0.5  # least score of a detection that is believed against a label
SHOWN = 12  # cut-outs of a gallery
LISTED = 200  # likely label errors that are named
ROWS = 25  # classes in the table at once; the others can be unfolded
LONGEST = 1280  # pixels of a picture of a batch within the page
STYLE = """
.counts { grid-template-columns: repeat(auto-fit, minmax(92px, 1fr)); max-width: 760px; }
.counts b { font-size: 22px; }
nav a { margin-right: 14px; display: inline-block; } a { color: inherit; }
.charts, .batches { display: grid; gap: 12px; align-items: start; }
.charts { grid-template-columns: repeat(auto-fill, minmax(min(360px, 100%), 1fr)); }
.charts:has(> :nth-child(4):last-child) { grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); }
.charts img, .batch img, .matrix img { width: 100%; display: block; border-radius: 4px; background: #fff; }
.batch { margin: 0; width: 100%; overflow-x: auto; } .batch img { min-width: 720px; }
.matrix img { width: auto; max-width: 100%; }
.matrix.large img { max-width: none; width: 1240px; }
.crops { display: grid; gap: 10px; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); align-items: start; }
.crops figure { width: 100%; }
.texts th, .texts td, .kinds :is(th, td):last-child, .pairs :is(th, td):nth-child(2) { text-align: left; }
.texts td { white-space: normal; }
h3 { margin-top: 16px; }
"""


class Report:
    """Draws the pictures into plots/ and writes report.html.

    Args:
        files: what the run left.
        datasets: the splits it looked at, or a sentence why they cannot be opened.
    """

    def __init__(self, files: RunFiles, datasets: Mapping[str, DetectionDataset] | str) -> None:
        self.files, self.datasets = files, datasets
        self.plots = files.path / "plots"

    def write(self) -> Path:
        path, title = self.files.path / "report.html", f"Report: {self.files.title}"
        sections = {
            "Figures": self._figures(),
            "Run": self._run(),
            "Curves": self._curves(),
            **self._by_detections(),
            "Labels": self._labels(),
            "Batches": self._batches(),
        }
        sections = {name: body for name, body in sections.items() if body}
        links = "".join(f'<a href="#{name.lower().replace(" ", "-")}">{name}</a>' for name in sections)
        body = f"<h1>{escape(title)}</h1>{self._head()}<nav>{links}</nav>\n"
        for name, content in sections.items():
            body += f'<section><h2 id="{name.lower().replace(" ", "-")}">{name}</h2>{content}</section>\n'
        whole = page.document(title, body, STYLE)
        write_atomically(path, lambda file: file.write(whole))
        return path

    # ---- Head, figures, run

    def _head(self) -> str:
        m = self.files.metrics
        if not m:
            return _missing("metrics.json is missing: no epoch was validated")
        epoch = f", best epoch {m['epoch'] + 1} of {len(self.files.epochs) or m['epoch'] + 1}" if "epoch" in m else ""
        told = f"{m['command']}{epoch}; figures of {m['images']} images with {m['objects']} objects of the split {m['split']}"
        names = ("mAP50-95", "mAP50", "P", "R", "coco/AP", "fitness")
        boxes = "".join(f"<div><b>{_number(m.get(name))}</b>{escape(name)}</div>" for name in names)
        return f'<p class="soft">{escape(told)}</p><div class="counts">{boxes}</div>'

    def _figures(self) -> str:
        m = self.files.metrics
        if not m:
            return ""
        columns = ("P", "R", "mAP50", "mAP50-95", "coco/AP")
        heads = ("class", "objects", *columns)
        everything = [{"name": "all", **m}, *m["per_class"]]
        rows = [[row["name"], str(row["objects"]), *(_number(row[c]) for c in columns)] for row in everything]
        body = page.table(heads, rows[: ROWS + 1])
        if len(rows) > ROWS + 1:
            more = page.table(heads, rows[ROWS + 1 :])
            body += f"<details><summary>{len(rows) - ROWS - 1} more classes</summary>{more}</details>"
        coco = [[name.removeprefix("coco/"), _number(value)] for name, value in m.items() if name.startswith("coco/")]
        conf = f"P and R are at confidence {_number(m.get('best_confidence'))}, where the mean F1 is best; IoU 0.5."
        coco_table = f"<details><summary>COCO's figures</summary>{page.table(('figure', 'value'), coco)}</details>"
        return f'{body}<p class="soft">{conf}</p>{coco_table}'

    def _run(self) -> str:
        return f"{self._changed()}{self._machine()}"

    def _changed(self) -> str:
        changed = self.files.changed
        if changed is None:
            why = "changed.yaml is missing: a script started the run, or it is older than reports; see config.yaml"
            return f"<h3>Options</h3>{_missing(why)}"
        rows = [[name, str(value)] for name, value in changed.items()]
        title = "<h3>Options that differ from the defaults</h3>"
        return title + (page.table(("option", "value"), rows, "texts") if rows else "<p>None.</p>")

    def _machine(self) -> str:
        machine = self.files.machine
        if not machine:
            return f"<h3>Machine and time</h3>{_missing('machine.json is missing: the run is older than reports')}"
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        rows = [["started", machine["started"]], ["machine", described(machine)], ["versions", versions]]
        rows.append(["source", machine["git"] or "not under git"])
        seconds = [float(row["seconds"]) for row in self.files.epochs if row.get("seconds")]
        if seconds:
            rows.append(
                ["training", f"{_time(sum(seconds))} in {len(seconds)} epochs, {_time(sum(seconds) / len(seconds))} each"]
            )
        return f"<h3>Machine and time</h3>{page.table(('', ''), rows, 'texts')}"

    def _curves(self) -> str:
        if not self.files.epochs:
            return "" if self.files.metrics.get("command") != "fit" else _missing("metrics.csv is missing")
        body = _charts(draw_epochs(self.files.epochs, self.plots))
        if not self.files.iterations:
            return body + _missing("iterations.csv is missing: the run is older than reports")
        return f"{body}<h3>By iteration</h3>{_charts(draw_iterations(self.files.iterations, self.plots))}"

    # ---- What follows from the detections

    def _by_detections(self) -> dict[str, str]:
        record = self.files.record()
        if isinstance(record, str):
            return {"Detections": _missing(record)}
        hits = record.hits()
        figures = record.figures(hits)
        curves = precision_at_recall(hits[:, 0], record.score, record.kind, figures)
        charts = _charts(draw_confidence(curves, figures, record.names, self.plots))
        charts += '<p class="soft">Thin: classes, thick: their mean. The ring marks the confidence with the best mean F1.</p>'
        return {
            "Confidence": charts if len(figures.classes) else _missing("there are no labels to compare with"),
            "Confusion": self._confusion(record),
            **self._errors(record, hits[:, 0], figures.best_confidence),
        }

    def _confusion(self, record: PredictionRecord) -> str:
        matrix, theirs = confusion(record), confusion(record, skip_unmatched=True)
        path = draw_confusion(matrix, record.names, self.plots / "confusion_matrix.png")
        false, extra = int(matrix[:, -1].sum()), int(matrix[:, -1].sum() - theirs[:, -1].sum())
        large = " large" if len(record.names) > 20 else ""
        body = f'<div class="matrix wide{large}">{page.picture(path.read_bytes(), "Confusion matrix", "png")}</div>'
        body += (
            '<p class="soft">Detections over 0.25, paired with labels at IoU over 0.45 whatever their class. '
            f"{false} are false positives; {extra} of them lie in images where nothing matches, which YOLOv5 leaves out.</p>"
        )
        rows = [[true, told, str(n), f"{share:.0%}"] for true, told, n, share in commonest(matrix, record.names)]
        return body + (page.table(("true", "predicted as", "times", "of the true class"), rows, "pairs") if rows else "")

    def _errors(self, record: PredictionRecord, hits: np.ndarray, confidence: float) -> dict[str, str]:
        errors = classify(record, hits)
        counts = tally(record, errors, confidence)
        charts = _charts(draw_errors(counts, record.names, self.plots))
        rows = [["hit", *_sizes(counts.by_kind["hit"]), "", TOLD["hit"]]]
        for kind in WRONG:
            rows.append([kind, *_sizes(counts.by_kind[kind]), f"{counts.gain(kind):+.3f}", TOLD[kind]])
        heads = ("kind", "number", *SIZES, "mAP50 gained", "what it is")
        told = (
            f'<p class="soft">Kinds of TIDE (Bolya et al. 2020). Numbers: detections from confidence {confidence:.3f} on, '
            "where the mean F1 is best, by the size of their box in COCO's classes. Gained is what mending the kind would "
            "add, in all detections.</p>"
        )
        counted = record.score >= confidence
        crops = Crops(record, errors, confidence)
        wrong = surest(record, counted & ~np.isin(errors.verdict, (HIT, DUPLICATE)), SHOWN)
        missed = largest(record, errors.missed(len(record.label_kind), counted), SHOWN)
        body = page.table(heads, rows, "kinds") + told + charts
        body += self._gallery("Surest false positives", crops.detections(wrong), "errors_false_positives.jpg")
        body += self._gallery("Largest missed objects", crops.labels(missed), "errors_missed.jpg")
        return {"Errors": body, "Likely label errors": self._suspects(record, crops)}

    def _suspects(self, record: PredictionRecord, crops: Crops) -> str:
        suspects = label_suspects(record, crops.errors, SURE)
        rows = np.flatnonzero(suspects)[np.argsort(-record.score[suspects], kind="stable")].tolist()
        if not rows:
            return f"<p>None: no detection over {SURE:g} speaks against the labels.</p>"
        told = f"{len(rows)} detections over {SURE:g} where no label is near, or one of another class: look at them first."
        body = self._gallery("", crops.detections(surest(record, suspects, SHOWN)), "errors_labels.jpg")
        lines = []
        for k in rows[:LISTED]:
            target = int(crops.errors.target[k])
            label = "none" if crops.errors.verdict[k] == BACKGROUND else record.names[record.label_kind[target]]
            box = ", ".join(f"{v:.0f}" for v in record.box[k])
            lines.append(
                [
                    record.name_of(int(record.image[k])),
                    record.names[record.kind[k]],
                    f"{record.score[k]:.2f}",
                    label,
                    box,
                ]
            )
        table = page.table(("file", "found", "score", "label", "box x1, y1, x2, y2"), lines)
        more = f", the surest {LISTED}" if len(rows) > LISTED else ""
        place = f'<p class="soft">Files are in {escape(record.folder)}</p>' if record.folder else ""
        return f'<p class="soft">{told}</p>' + f"{body}<details><summary>All of them{more}</summary>{place}{table}</details>"

    def _gallery(self, title: str, crops: Sequence[Crop], name: str) -> str:
        head = f"<h3>{title}</h3>" if title else ""
        if not crops:
            return f"{head}<p>None.</p>" if title else ""
        if any(crop.jpeg for crop in crops):
            write_image(self.plots / name, sheet(crops))
        legend = '<p class="soft">Solid orange: detections. Dashed blue: labels.</p>'
        return f'{head}{legend}<div class="crops">{"".join(map(_crop, crops))}</div>'

    # ---- Labels, batches

    def _labels(self) -> str:
        if isinstance(self.datasets, str):
            return _missing(self.datasets)
        drawn = draw_labels(self.datasets, round_up(int(self.files.option("data.image_size", 640)), 32), self.plots)
        anchors = self.plots / "anchors.png"
        return _charts([*drawn, *([anchors] if anchors.is_file() else [])])

    def _batches(self) -> str:
        train = [self.plots / f"train_batch{k}.jpg" for k in range(3)]
        parts = []
        pairs = {
            "Training, as the network sees it": train,
            "Validation: labels, then predictions": [self.plots / f"val_{name}.jpg" for name in ("labels", "predictions")],
        }
        for title, paths in pairs.items():
            there = [path for path in paths if path.is_file()]
            if there:
                shown = "".join(f'<figure class="batch">{_smaller(p)}<figcaption>{p.name}</figcaption></figure>' for p in there)
                parts.append(f'<h3>{title}</h3><div class="batches">{shown}</div>')
            elif paths != train or self.files.metrics.get("command") == "fit":
                parts.append(f"<h3>{title}</h3>{_missing(f'plots/{paths[0].name} is missing')}")
        return "".join(parts)


def _missing(why: str) -> str:
    return f'<div class="missing">{escape(why)}</div>'


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


def _sizes(counts: np.ndarray) -> list[str]:
    return [str(int(counts.sum())), *map(str, counts.tolist())]


def _time(seconds: float) -> str:
    """1:02:03, or 4.5 s."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if seconds >= 60 else f"{seconds:.1f} s"


def _charts(paths: Sequence[Path]) -> str:
    shown = "".join(page.picture(path.read_bytes(), path.stem.replace("_", " "), path.suffix[1:]) for path in paths)
    return f'<div class="charts">{shown}</div>' if paths else ""


def _smaller(path: Path) -> str:
    """A picture of a batch, small enough for the page."""
    image = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        return _missing(f"{path.name} cannot be read")
    shrink = min(LONGEST / max(image.shape[:2]), 1)
    size = (max(round(image.shape[1] * shrink), 1), max(round(image.shape[0] * shrink), 1))
    jpeg = cv2.imencode(".jpg", cv2.resize(image, size, interpolation=cv2.INTER_AREA), [cv2.IMWRITE_JPEG_QUALITY, 80])[1]
    return page.picture(jpeg.tobytes(), path.stem.replace("_", " "))


def _crop(crop: Crop) -> str:
    shown = page.picture(crop.jpeg, crop.caption) if crop.jpeg else _missing(f"cannot be shown: {crop.reason}")
    return f"<figure>{shown}<figcaption>{escape(crop.caption)}<br>{escape(crop.file)}</figcaption></figure>"
