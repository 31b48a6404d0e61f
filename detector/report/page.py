"""The report of a run, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.error_kinds import (
    CLASS,
    DESCRIPTIONS,
    DUPLICATE,
    KINDS,
    TRUE_POSITIVE,
    Errors,
    classify,
    count_errors,
)
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.report.charts import draw_confidence, draw_confusion, draw_curves
from boltbox.detector.report.drawing import crop_around
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import Crop, Section, write_page
from boltbox.detector.report.table import class_rows, number
from boltbox.detector.system.errors import InputError, Unreachable
from boltbox.detector.system.host import described
from boltbox.detector.weights.published import describe_origins

MAX_CROPS = 24  # of a section
LEGEND = (
    "Orange: detections. Blue: labels. `python cli.py review` finds wrong or missing labels to"
    " correct."
)
PICTURES = {  # of the run's callbacks, in plots/
    "Labels": ("labels.png",),
    "Training batches, as the network sees them": (
        "train_batch0.jpg",
        "train_batch1.jpg",
        "train_batch2.jpg",
    ),
    "Last validation: labels, then predictions": ("val_labels.jpg", "val_predictions.jpg"),
}


def write_report(run: Path) -> Path:
    """Write report.html from the files in a run folder, and its pictures in plots/; sections whose
    files are missing are left out.

    Args:
        run: The folder.

    Returns:
        The HTML file.

    Raises:
        InputError: the folder holds no run, or a file in it cannot be read.
    """
    files = RunFiles(run)
    plots = run / "plots"
    sections: list[Section] = []
    if files.metrics:
        sections.append(_metrics(files.metrics))
    if files.changed:
        rows = [("option", "value"), *files.changed.items()]
        sections.append(Section("Options that differ from the defaults", table=rows))
    if files.machine:
        sections.append(_machine(files.machine))
    if draw_curves(files.epochs, plots / "curves.png"):
        sections.append(Section("Curves", pictures=[plots / "curves.png"]))
    try:
        record = files.record()
    except (InputError, Unreachable) as e:
        sections.append(Section("Detections", [str(e)]))
    else:
        sections += _detections(record, plots)
    if files.anchors:
        sections.append(Section("Anchors", [files.anchors["reason"]]))
    for title, names in PICTURES.items():
        pictures = [plots / name for name in names if (plots / name).is_file()]
        if pictures:
            sections.append(Section(title, pictures=pictures))
    path = run / "report.html"
    write_page(path, f"Report: {'/'.join(run.resolve().parts[-2:])}", sections)
    return path


def _metrics(metrics: dict[str, Any]) -> Section:
    epoch = f", best epoch {metrics['epoch'] + 1}" if "epoch" in metrics else ""
    origins = [(entry["source"], entry["licence"]) for entry in metrics.get("origins", ())]
    coco = []
    for name, value in metrics.items():
        if name.startswith("coco/"):
            coco.append(f"{name.removeprefix('coco/')} {number(value)}")
    text = [
        f"{metrics['command']}{epoch}; metrics of {metrics['images']} images with"
        f" {metrics['objects']} objects of the split {metrics['split']}, fitness"
        f" {number(metrics['fitness'])}",
        f"weights: {describe_origins(origins)}",
        f"P and R at confidence {number(metrics.get('best_confidence'))}, where the smoothed"
        " mean F1 is best",
        f"COCO metrics: {', '.join(coco)}",
    ]
    return Section("Metrics", text, class_rows(metrics))


def _machine(machine: dict[str, Any]) -> Section:
    text = [
        f"Started {machine['started']} on {described(machine)}",
        ", ".join(f"{name} {version}" for name, version in machine["versions"].items()),
    ]
    return Section("Machine", text)


def _detections(record: PredictionRecord, plots: Path) -> Iterator[Section]:
    """What the detections and labels of an evaluation show."""
    names = record.names
    true_positives = record.true_positives()
    metrics = class_metrics(true_positives, record.score, record.kind, record.label_kind)
    if len(metrics.classes):
        draw_confidence(metrics, names, plots / "confidence.png")
        yield Section("Confidence", pictures=[plots / "confidence.png"])
    draw_confusion(record.confused_pairs(len(names)), names, plots / "confusion_matrix.png")
    text = "Detections over 0.25, paired with labels at IoU over 0.45 whatever their class."
    yield Section("Confusion", [text], pictures=[plots / "confusion_matrix.png"])
    errors = classify(record, true_positives[:, 0])
    confidence = metrics.best_confidence
    yield _error_table(record, errors, confidence)
    confident = record.score >= confidence
    wrong = confident & ~np.isin(errors.verdict, (TRUE_POSITIVE, DUPLICATE))
    if wrong.any():
        text = f"{_shown(wrong)}, also where the label is wrong or missing. {LEGEND}"
        crops = [_false_positive(record, errors, k) for k in _greatest(wrong, record.score)]
        yield Section("Most confident false positives", [text], crops=crops)
    missed = errors.missed(len(record.label_kind), confident)
    if missed.any():
        largest = _greatest(missed, record.label_area)
        crops = [_missed_object(record, k, confident) for k in largest]
        yield Section("Largest missed objects", [f"{_shown(missed)}. {LEGEND}"], crops=crops)


def _error_table(record: PredictionRecord, errors: Errors, confidence: float) -> Section:
    text = (
        "Kinds of TIDE (Bolya et al. 2020), of detections with a confidence of at least"
        f" {confidence:.3f}, where the smoothed mean F1 is best."
    )
    rows: list[tuple[object, ...]] = [("kind", "number", "meaning")]
    for kind, count in count_errors(record, errors, confidence).items():
        rows.append((kind, count, DESCRIPTIONS[kind]))
    return Section("Errors", [text], rows)


def _greatest(chosen: np.ndarray, value: np.ndarray) -> list[int]:
    """The chosen rows (n,) bool of the greatest values (n,), at most MAX_CROPS."""
    order = np.argsort(-value, kind="stable")
    return order[chosen[order]][:MAX_CROPS].tolist()


def _shown(selected: np.ndarray) -> str:
    """How many of them a section shows."""
    count = int(selected.sum())
    return f"{count} in all" if count <= MAX_CROPS else f"{MAX_CROPS} of {count}"


def _false_positive(record: PredictionRecord, errors: Errors, k: int) -> Crop:
    """Detection k with its class, score and kind of error, and the labels around it."""
    image = record.image[k]
    box = record.box[k]
    verdict = errors.verdict[k]
    caption = f"{record.names[record.kind[k]]} {record.score[k]:.2f}: {KINDS[verdict]}"
    if verdict == CLASS:
        caption += f", labelled {record.names[record.label_kind[errors.target[k]]]}"
    labels = record.label_box[record.label_image == image]
    picture = crop_around(record.files[image], box, box[None], labels)
    return Crop(picture, caption, record.name_of(image))


def _missed_object(record: PredictionRecord, k: int, confident: np.ndarray) -> Crop:
    """Label k with its class and size, and the detections around it that are `confident` (n,)."""
    image = record.label_image[k]
    box = record.label_box[k]
    width, height = box[2:] - box[:2]
    caption = f"{record.names[record.label_kind[k]]}: missed, {width:.0f} x {height:.0f} px"
    detections = record.box[confident & (record.image == image)]
    picture = crop_around(record.files[image], box, detections, box[None])
    return Crop(picture, caption, record.name_of(image))
