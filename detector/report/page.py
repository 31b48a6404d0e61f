"""The report as one HTML file that needs nothing else: what `templates/report.html` shows of a
run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.evaluation.error_kinds import (
    BACKGROUND,
    DESCRIPTIONS,
    DUPLICATE,
    SIZES,
    TRUE_POSITIVE,
    classify,
    count_errors,
    label_suspects,
    largest,
    most_confident,
)
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.model.origin import Origin, told
from boltbox.detector.report.confidence import draw_confidence
from boltbox.detector.report.confusion import commonest, confusion, draw_confusion
from boltbox.detector.report.crops import Crop, Crops, sheet
from boltbox.detector.report.curves import draw_epochs, draw_iterations
from boltbox.detector.report.drawing import write_image
from boltbox.detector.report.error_chart import WRONG, draw_errors
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import document
from boltbox.detector.report.labels import draw_labels
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.host import described

LEAST_SCORE = 0.5  # of a detection that is believed against a label
SHOWN = 12  # cut-outs of a gallery
LISTED = 200  # likely label errors that are named
ROWS = 25  # classes in the table at once; the others can be unfolded
LONGEST = 1280  # pixels of a picture of a batch within the page
COLUMNS = ("P", "R", "mAP50", "mAP50-95", "coco/AP")


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
        """Returns the file's path. A section is what its macro of the template shows, or a sentence
        why there is nothing to show; one that is empty is left out."""
        sections = {
            "Figures": self._metrics(),
            "Run": {"changed": self._changed(), "machine": self._machine()},
            "Curves": self._curves(),
            **self._by_detections(),
            "Labels": self._labels(),
            "Batches": self._batches(),
        }
        sections = {name: section for name, section in sections.items() if section}
        path, title = self.files.path / "report.html", f"Report: {self.files.title}"
        page = document(
            "report/templates/report.html", title=title, head=self._head(), sections=sections
        )
        write_atomically(path, lambda file: file.write(page))
        return path

    # ---- Head, metrics, run

    def _head(self) -> dict[str, Any] | None:
        m = self.files.metrics
        if not m:
            return None
        epoch = (
            f", best epoch {m['epoch'] + 1} of {len(self.files.epochs) or m['epoch'] + 1}"
            if "epoch" in m
            else ""
        )
        text = (
            f"{m['command']}{epoch}; figures of {m['images']} images with {m['objects']} objects of"
            f" the split {m['split']}"
        )
        names = ("mAP50-95", "mAP50", "P", "R", "coco/AP", "fitness")
        origins = [Origin(**entry) for entry in m["origins"]] if "origins" in m else None
        numbers = {name: _number(m.get(name)) for name in names}
        return {
            "text": text,
            "numbers": numbers,
            "weights": "" if origins is None else told(origins),
        }

    def _metrics(self) -> dict[str, Any] | None:
        m = self.files.metrics
        if not m:
            return None
        rows = [
            [r["name"], r["objects"], *(_number(r[c]) for c in COLUMNS)]
            for r in [{"name": "all", **m}, *m["per_class"]]
        ]
        coco = [
            (name.removeprefix("coco/"), _number(value))
            for name, value in m.items()
            if name.startswith("coco/")
        ]
        confidence = _number(m.get("best_confidence"))
        return {
            "classes": rows[: ROWS + 1],
            "more": rows[ROWS + 1 :],
            "confidence": confidence,
            "coco": coco,
        }

    def _changed(self) -> list[tuple[str, Any]] | None:
        return None if self.files.changed is None else list(self.files.changed.items())

    def _machine(self) -> list[tuple[str, str]]:
        machine = self.files.machine
        if not machine:
            return []
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        rows = [
            ("started", machine["started"]),
            ("machine", described(machine)),
            ("versions", versions),
        ]
        rows.append(("source", machine["git"] or "not under git"))
        seconds = [float(row["seconds"]) for row in self.files.epochs if row.get("seconds")]
        if seconds:
            each = _time(sum(seconds) / len(seconds))
            rows.append(
                ("training", f"{_time(sum(seconds))} in {len(seconds)} epochs, {each} each")
            )
        return rows

    def _curves(self) -> dict[str, Any] | str:
        if not self.files.epochs:
            return "" if self.files.metrics.get("command") != "fit" else "metrics.csv is missing"
        iterations = (
            draw_iterations(self.files.iterations, self.plots) if self.files.iterations else None
        )
        return {"epochs": draw_epochs(self.files.epochs, self.plots), "iterations": iterations}

    # ---- What follows from the detections

    def _by_detections(self) -> dict[str, Any]:
        record = self.files.record()
        if isinstance(record, str):
            return {"Detections": record}
        true_positives = record.true_positives()
        metrics = record.class_metrics(true_positives)
        return {
            "Confidence": (
                draw_confidence(metrics, record.names, self.plots)
                or "there are no labels to compare with"
            ),
            "Confusion": self._confusion(record),
            **self._errors(record, true_positives[:, 0], metrics.best_confidence),
        }

    def _confusion(self, record: PredictionRecord) -> dict[str, Any]:
        counted, theirs = confusion(record), confusion(record, skip_unmatched=True)
        false_positives = counted.false_positives()
        return {
            "path": draw_confusion(counted, record.names, self.plots / "confusion_matrix.png"),
            "large": len(record.names) > 20,
            "false_positives": false_positives,
            "unmatched": false_positives - theirs.false_positives(),
            "pairs": [
                (true, found, n, f"{share:.0%}")
                for true, found, n, share in commonest(counted, record.names)
            ],
        }

    def _errors(
        self, record: PredictionRecord, true_positives: np.ndarray, confidence: float
    ) -> dict[str, Any]:
        errors = classify(record, true_positives)
        counts = count_errors(record, errors, confidence)
        kinds = [
            (kind, counts.by_kind[kind].sum(), *counts.by_kind[kind], gain, DESCRIPTIONS[kind])
            for kind, gain in {
                "hit": "",
                **{kind: f"{counts.gain(kind):+.3f}" for kind in WRONG},
            }.items()
        ]
        counted = record.score >= confidence
        crops = Crops(record, errors, confidence)
        wrong = most_confident(
            record, counted & ~np.isin(errors.verdict, (TRUE_POSITIVE, DUPLICATE)), SHOWN
        )
        missed = largest(record, errors.missed(len(record.label_kind), counted), SHOWN)
        shown = {
            "sizes": SIZES,
            "kinds": kinds,
            "confidence": f"{confidence:.3f}",
            "charts": draw_errors(counts, record.names, self.plots),
            "galleries": {
                "Surest false positives": self._gallery(
                    crops.detections(wrong), "errors_false_positives.jpg"
                ),
                "Largest missed objects": self._gallery(crops.labels(missed), "errors_missed.jpg"),
            },
        }
        return {"Errors": shown, "Likely label errors": self._suspects(record, crops)}

    def _suspects(self, record: PredictionRecord, crops: Crops) -> dict[str, Any]:
        suspects, errors = label_suspects(record, crops.errors, LEAST_SCORE), crops.errors
        best_first = np.flatnonzero(suspects)[
            np.argsort(-record.score[suspects], kind="stable")
        ].tolist()
        rows = []
        for k in best_first[:LISTED]:
            label = (
                "none"
                if errors.verdict[k] == BACKGROUND
                else record.names[record.label_kind[errors.target[k]]]
            )
            file, box = (
                record.name_of(int(record.image[k])),
                ", ".join(f"{v:.0f}" for v in record.box[k]),
            )
            rows.append((file, record.names[record.kind[k]], f"{record.score[k]:.2f}", label, box))
        shown = self._gallery(
            crops.detections(most_confident(record, suspects, SHOWN)), "errors_labels.jpg"
        )
        return {
            "count": len(best_first),
            "least": LEAST_SCORE,
            "rows": rows,
            "crops": shown,
            "folder": record.folder,
        }

    def _gallery(self, crops: Sequence[Crop], name: str) -> Sequence[Crop]:
        """The same; they are a file in plots/ too."""
        if any(crop.jpeg for crop in crops):
            write_image(self.plots / name, sheet(crops))
        return crops

    # ---- Labels, batches

    def _labels(self) -> list[Path] | str:
        if isinstance(self.datasets, str):
            return self.datasets
        drawn = draw_labels(
            self.datasets, round_up(int(self.files.option("data.image_size", 640)), 32), self.plots
        )
        anchors = self.plots / "anchors.png"
        return [*drawn, *([anchors] if anchors.is_file() else [])]

    def _batches(self) -> list[dict[str, Any]]:
        """The training's are missed in a fit alone."""
        training = [f"train_batch{k}.jpg" for k in range(3)]
        groups = {
            "Training, as the network sees it": training,
            "Validation: labels, then predictions": ["val_labels.jpg", "val_predictions.jpg"],
        }
        shown = []
        for title, names in groups.items():
            pictures = [
                (path, _smaller(path))
                for path in (self.plots / name for name in names)
                if path.is_file()
            ]
            if pictures or names != training or self.files.metrics.get("command") == "fit":
                shown.append({"title": title, "pictures": pictures, "first": names[0]})
        return shown


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


def _time(seconds: float) -> str:
    """1:02:03, or 4.5 s."""
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
        if seconds >= 60
        else f"{seconds:.1f} s"
    )


def _smaller(path: Path) -> bytes | None:
    """A JPEG of a picture of a batch, small enough for the page; None if it cannot be read."""
    image = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        return None
    shrink = min(LONGEST / max(image.shape[:2]), 1)
    size = (max(round(image.shape[1] * shrink), 1), max(round(image.shape[0] * shrink), 1))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()
