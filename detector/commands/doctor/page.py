"""The diagnosis as one self-contained HTML file."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding, by_kind
from boltbox.detector.commands.doctor.image_file import captured_stderr
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.report.charts import draw_labels
from boltbox.detector.report.drawing import crop_around
from boltbox.detector.report.html import Crop, Section, write_page
from boltbox.detector.system.atomic_file import remove
from boltbox.detector.system.file_names import common_folder, inside

LISTED = 500  # findings of a kind; all are in doctor.json
PICTURES = 6  # of a kind
MARGIN = (-3, -3, 3, 3)  # pixels around the boxes of findings, which may have no size


def write_diagnosis(
    path: Path, diagnosis: Diagnosis, datasets: Mapping[str, DetectionDataset]
) -> None:
    """Write the page: counts, a picture of the labels, and findings by kind with cut-outs.

    Args:
        path: of the HTML file; plots/labels.png is written beside it.
        diagnosis: of the dataset.
        datasets: by split, for the labels in the pictures.
    """
    folder = common_folder([f.file for f in diagnosis.findings if f.file])
    text = [diagnosis.verdict()]
    if folder:
        text.append(f"Files are in {folder}")
    sections = [Section("Findings", text)]
    values = diagnosis.statistics
    if values.get("splits"):
        picture = path.parent / "plots/labels.png"
        remove(picture)  # of an earlier examination
        draw_labels(datasets, picture)
        sections.append(_counts(values["splits"], picture))
        classes = [("class", *values["splits"])]
        counts = [of_split["class_counts"] for of_split in values["splits"].values()]
        classes += zip(values["names"], *counts, strict=True)
        sections.append(Section("Classes", table=classes))
    labels = {}
    for dataset in datasets.values():
        for i, image in enumerate(dataset.files):
            labels[image] = dataset.labels[i].boxes
    for group in by_kind(diagnosis.findings):
        sections.append(_findings(group, labels, folder))
    write_page(path, f"Doctor: {diagnosis.source}", sections)


def _counts(splits: Mapping[str, Mapping[str, int]], picture: Path) -> Section:
    rows: list[tuple] = [("split", "images", "background", "boxes")]
    for split, counts in splits.items():
        rows.append((split, counts["images"], counts["background"], counts["boxes"]))
    pictures = [picture] if picture.exists() else []
    return Section("Labels", ["Background: images without objects."], rows, pictures)


def _findings(
    findings: Sequence[Finding], labels: Mapping[str, np.ndarray], folder: str
) -> Section:
    """The findings of one kind; labels: boxes (n, 4) by image, folder: of the files."""
    rows = [("file", "problem")]
    of_image: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        rows.append((_place(finding, folder), finding.problem))
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
            crops.append(Crop(picture, _place(first, folder), inside(path, folder)))
    text = []
    if len(findings) > LISTED:
        text.append(f"{len(findings) - LISTED} further ones are in doctor.json")
    title = f"{findings[0].severity}: {findings[0].kind} ({len(findings)})"
    return Section(title, text, rows[: LISTED + 1], crops=crops)


def _place(finding: Finding, folder: str) -> str:
    return finding.place(inside(finding.file, folder) if finding.file else "")
