"""The diagnosis as one self-contained HTML file."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding, by_kind
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.report.drawing import crop_around
from boltbox.detector.report.html import Crop, Section, write_page
from boltbox.detector.system.operating_system import captured_stderr

LISTED = 500  # findings of a kind; all are in doctor.json
PICTURES = 6  # of a kind
MARGIN = (-3, -3, 3, 3)  # pixels around the boxes of findings, which may have no size


def write_diagnosis(
    path: Path, diagnosis: Diagnosis, datasets: Mapping[str, DetectionDataset]
) -> None:
    """Write the page: the number of boxes of each class, and findings by kind with cut-outs.

    Args:
        path: of the HTML file.
        diagnosis: of the dataset.
        datasets: by split, for the labels in the pictures.
    """
    of_splits = list(diagnosis.boxes.values())
    rows: list[tuple] = [("class", *diagnosis.boxes)]
    for name in of_splits[0]:
        rows.append((name, *[counts[name] for counts in of_splits]))
    sections = [Section("Findings", [diagnosis.verdict()]), Section("Boxes", table=rows)]
    labels = {}
    for dataset in datasets.values():
        for i, image in enumerate(dataset.files):
            labels[image] = dataset.labels[i].boxes
    for group in by_kind(diagnosis.findings):
        sections.append(_findings(group, labels))
    write_page(path, f"Doctor: {diagnosis.source}", sections)


def _findings(findings: Sequence[Finding], labels: Mapping[str, np.ndarray]) -> Section:
    """The findings of one kind; labels: boxes (n, 4) by image."""
    rows = [("file", "problem")]
    of_image: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        rows.append((finding.place(), finding.problem))
        if finding.image:
            of_image[finding.image].append(finding)
    crops = []
    for image in sorted(of_image, key=lambda image: -len(of_image[image]))[:PICTURES]:
        first = of_image[image][0]
        for path in filter(None, (image, first.other)):
            boxes = [finding.box for finding in of_image.get(path, []) if finding.box]
            marked = np.array(boxes, float).reshape(-1, 4) + MARGIN
            around = marked[0] if boxes else None
            with captured_stderr():  # decoders report damaged files there
                picture = crop_around(path, around, marked, labels.get(path, np.zeros((0, 4))))
            crops.append(Crop(picture, first.place(), path))
    text = []
    if len(findings) > LISTED:
        text.append(f"{len(findings) - LISTED} further ones are in doctor.json")
    title = f"{findings[0].severity}: {findings[0].kind} ({len(findings)})"
    return Section(title, text, rows[: LISTED + 1], crops=crops)
