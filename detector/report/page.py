"""The report of a run, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.confusion import mistaken_classes
from boltbox.detector.evaluation.error_kinds import (
    CLASS,
    DESCRIPTIONS,
    DUPLICATE,
    KINDS,
    SIZES,
    TRUE_POSITIVE,
    Errors,
    classify,
    count_errors,
    greatest,
    map50_if_fixed,
)
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.model.origin import Origin, describe_origins
from boltbox.detector.report.anchors import anchor_rows
from boltbox.detector.report.charts import draw_confidence, draw_confusion, draw_curves
from boltbox.detector.report.drawing import crop_around
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import Crop, Section, write_page
from boltbox.detector.report.table import class_rows, number
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.host import described

SHOWN = 24  # cut-outs of a gallery
COMMONEST = 10  # confusions of two classes in the table
LEGEND = "Orange: detections. Blue: labels."
PICTURES = {  # of the run's callbacks, in plots/
    "Labels": ("labels.png",),
    "Training batches, as the network sees them": tuple(f"train_batch{k}.jpg" for k in range(3)),
    "Validation: labels, then predictions": ("val_labels.jpg", "val_predictions.jpg"),
}


def write_report(run: Path) -> Path:
    """Write report.html from what lies in a run's folder, and its pictures in plots/; sections
    without a file to go by are left out.

    Returns:
        The HTML file.

    Raises:
        InputError: the folder holds no run, or a file in it cannot be read.
    """
    files, plots, path = RunFiles.read(run), run / "plots", run / "report.html"
    sections = [*_metrics(files), *_run(files)]
    if draw_curves(files.epochs, plots / "curves.png"):
        sections.append(Section("Curves", pictures=[plots / "curves.png"]))
    sections += _detections(files, plots)
    if files.anchors:
        sections.append(Section("Anchors", [files.anchors["reason"]], anchor_rows(files.anchors)))
    for title, names in PICTURES.items():
        images = [plots / name for name in names if (plots / name).is_file()]
        if images:
            sections.append(Section(title, pictures=images))
    write_page(path, f"Report: {'/'.join(run.resolve().parts[-2:])}", sections)
    return path


def _metrics(files: RunFiles) -> Iterator[Section]:
    m = files.metrics
    if not m:
        return
    epoch = f", best epoch {m['epoch'] + 1}" if "epoch" in m else ""
    coco = [f"{k.removeprefix('coco/')} {number(v)}" for k, v in m.items() if k.startswith("coco/")]
    text = [
        f"{m['command']}{epoch}; metrics of {m['images']} images with {m['objects']} objects of the"
        f" split {m['split']}, fitness {number(m['fitness'])}",
        f"weights: {describe_origins([Origin(**entry) for entry in m.get('origins', ())])}",
        f"P and R at confidence {number(m.get('best_confidence'))}, where the mean F1 is best",
        f"COCO's metrics: {', '.join(coco)}",
    ]
    yield Section("Metrics", text, class_rows(m))


def _run(files: RunFiles) -> Iterator[Section]:
    if files.changed:
        rows = [("option", "value"), *files.changed.items()]
        yield Section("Options that differ from the defaults", table=rows)
    if machine := files.machine:
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        text = [f"Started {machine['started']} on {described(machine)}", versions]
        yield Section("Machine", [*text, f"Source: {machine['git'] or 'not under git'}"])


def _detections(files: RunFiles, plots: Path) -> Iterator[Section]:
    """What follows from each detection and label of the evaluation."""
    try:
        record = files.record()
    except InputError as e:
        yield Section("Detections", [str(e)])
        return
    true_positives, names = record.true_positives(), record.names
    metrics = class_metrics(true_positives, record.score, record.kind, record.label_kind)
    if len(metrics.classes):
        draw_confidence(metrics, names, plots / "confidence.png")
        yield Section("Confidence", pictures=[plots / "confidence.png"])
    pairs, picture = record.confused_pairs(len(names)), plots / "confusion_matrix.png"
    draw_confusion(pairs, names, picture)
    text = "Detections over 0.25, paired with labels at IoU over 0.45 whatever their class."
    wrong = mistaken_classes(pairs, len(names))[:COMMONEST]
    rows = [(names[true], names[predicted], times) for true, predicted, times in wrong]
    table = [("true", "predicted as", "times"), *rows] if rows else []
    yield Section("Confusion", [text], table, [picture])
    yield from _errors(record, classify(record, true_positives[:, 0]), metrics.best_confidence)


def _errors(record: PredictionRecord, errors: Errors, confidence: float) -> Iterator[Section]:
    map50 = map50_if_fixed(record, errors)
    rows = [
        (kind, int(n.sum()), *n, f"{map50[kind] - map50['hit']:+.3f}", DESCRIPTIONS[kind])
        for kind, n in count_errors(record, errors, confidence).items()
    ]
    text = (
        f"Kinds of TIDE (Bolya et al. 2020). Numbers: detections with a confidence of at least"
        f" {confidence:.3f}, where the mean F1 is best, by the size of their box in COCO's classes."
        " mAP50 gain: how much mAP50 would rise if every error of this kind were fixed. It counts"
        " detections of any confidence: an object that is missed at this one may be found by a less"
        " confident detection, and then fixing it gains nothing."
    )
    head = ("kind", "number", *SIZES, "mAP50 gain", "meaning")
    yield Section("Errors", [text], [head, *rows])
    sure = record.score >= confidence
    wrong = sure & ~np.isin(errors.verdict, (TRUE_POSITIVE, DUPLICATE))
    if wrong.any():
        crops = [
            _detection(record, errors, k)
            for k in greatest(wrong, record.score, record.image, SHOWN)
        ]
        text = f"{_shown(wrong)}, also where the label is wrong or missing. {LEGEND}"
        yield Section("Most confident false positives", [text], crops=crops)
    missed = errors.missed(len(record.label_kind), sure)
    if missed.any():
        crops = [
            _missed(record, k, sure)
            for k in greatest(missed, record.label_area, record.label_image, SHOWN)
        ]
        yield Section("Largest missed objects", [f"{_shown(missed)}. {LEGEND}"], crops=crops)


def _shown(chosen: np.ndarray) -> str:
    """How many of them a gallery shows."""
    number = int(chosen.sum())
    return f"{number} in all" if number <= SHOWN else f"{SHOWN} of {number}"


def _detection(record: PredictionRecord, errors: Errors, k: int) -> Crop:
    """Detection k with its class, score and kind of error, and the labels around it."""
    i, verdict, box = record.image[k], errors.verdict[k], record.box[k]
    caption = f"{record.names[record.kind[k]]} {record.score[k]:.2f}: {KINDS[verdict]}"
    if verdict == CLASS:
        caption += f", labelled {record.names[record.label_kind[errors.target[k]]]}"
    labels = record.label_box[record.label_image == i]
    picture = crop_around(record.files[i], box, box[None], labels)
    return Crop(picture, f"{caption}, IoU {errors.nearest[k]:.2f}", record.name_of(i))


def _missed(record: PredictionRecord, k: int, sure: np.ndarray) -> Crop:
    """Label k with its class and size, and the detections around it where `sure` (n,) is true."""
    i, box = record.label_image[k], record.label_box[k]
    width, height = box[2:] - box[:2]
    caption = f"{record.names[record.label_kind[k]]}: missed, {width:.0f} x {height:.0f} px"
    found = record.box[sure & (record.image == i)]
    picture = crop_around(record.files[i], box, found, box[None])
    return Crop(picture, caption, record.name_of(i))
