"""The report of a run, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from boltbox.detector.data.images import read_image
from boltbox.detector.evaluation.error_kinds import (
    DESCRIPTIONS,
    DUPLICATE,
    SIZES,
    TRUE_POSITIVE,
    Errors,
    classify,
    count_errors,
    greatest,
    label_suspects,
    map50_if_fixed,
)
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.evaluation.results import COLUMNS
from boltbox.detector.model.origin import Origin, describe_origins
from boltbox.detector.report.anchors import anchor_rows
from boltbox.detector.report.charts import draw_confidence, draw_confusion, draw_curves
from boltbox.detector.report.crops import crop_detection, crop_label
from boltbox.detector.report.drawing import encoded, grid
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import Section, write_page
from boltbox.detector.report.table import number
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.host import described

LEAST_SCORE = 0.5  # of a detection that is believed against a label
SHOWN = 12  # cut-outs of a gallery
SUSPECTS = 36  # and of the likely label errors
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
        images = [read_image(plots / name) for name in names if (plots / name).is_file()]
        if images:  # small enough for the page
            jpegs = [encoded(grid([image], longest=1280), 80) for image in images]
            sections.append(Section(title, pictures=jpegs))
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
        *(
            [describe_origins([Origin(**entry) for entry in m["origins"]])]
            if "origins" in m
            else []
        ),
        f"P and R at confidence {number(m.get('best_confidence'))}, where the mean F1 is best",
        f"COCO's metrics: {', '.join(coco)}",
    ]
    rows = [
        (row["name"], row["objects"], *(number(row[column]) for column in COLUMNS))
        for row in [{"name": "all", **m}, *m["per_class"]]
    ]
    yield Section("Metrics", text, [("class", "objects", *COLUMNS), *rows])


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
    true_positives = record.true_positives()
    metrics = record.class_metrics(true_positives)
    if len(metrics.classes):
        draw_confidence(metrics, record.names, plots / "confidence.png")
        yield Section("Confidence", pictures=[plots / "confidence.png"])
    counted, picture = record.confusion(len(record.names)), plots / "confusion_matrix.png"
    draw_confusion(counted, record.names, picture)
    text = "Detections over 0.25, paired with labels at IoU over 0.45 whatever their class."
    cells = counted.named(record.names)
    rows = [cell for cell in cells if cell[0] != cell[1] and "background" not in cell]
    table = [("true", "predicted as", "times"), *rows[:COMMONEST]] if rows else []
    yield Section("Confusion", [text], table, [picture])
    yield from _errors(record, classify(record, true_positives[:, 0]), metrics.best_confidence)


def _errors(record: PredictionRecord, errors: Errors, confidence: float) -> Iterator[Section]:
    map50 = map50_if_fixed(record, errors)
    rows = [
        (kind, int(n.sum()), *n, f"{map50[kind] - map50['hit']:+.3f}", DESCRIPTIONS[kind])
        for kind, n in count_errors(record, errors, confidence).items()
    ]
    text = (
        f"Kinds of TIDE (Bolya et al. 2020). Numbers: detections from confidence {confidence:.3f}"
        " on, where the mean F1 is best, by the size of their box in COCO's classes. Gained is what"
        " fixing the kind would add, in all detections."
    )
    head = ("kind", "number", *SIZES, "mAP50 gained", "what it is")
    yield Section("Errors", [text], [head, *rows])
    sure, right = record.score >= confidence, np.isin(errors.verdict, (TRUE_POSITIVE, DUPLICATE))
    suspects = label_suspects(record, errors, LEAST_SCORE)
    against = f"Likely label errors: detections over {LEAST_SCORE} against the labels"
    galleries = [
        ("Most confident false positives", sure & ~right, SHOWN),
        (against, suspects, SUSPECTS),
    ]
    for title, kept, count in galleries:
        if kept.any():
            crops = [
                crop_detection(record, errors, k)
                for k in greatest(kept, record.score, record.image, count)
            ]
            yield Section(title, [f"{kept.sum()} in all. {LEGEND}"], crops=crops)
    missed = errors.missed(len(record.label_kind), sure)
    if missed.any():
        crops = [
            crop_label(record, k, confidence)
            for k in greatest(missed, record.label_area, record.label_image, SHOWN)
        ]
        yield Section("Largest missed objects", [f"{missed.sum()} in all. {LEGEND}"], crops=crops)
