"""The diagnosis as one HTML file that needs nothing else."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding, by_kind
from boltbox.detector.commands.doctor.image_file import standard_error
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.report.charts import draw_labels
from boltbox.detector.report.drawing import crop_around
from boltbox.detector.report.html import Crop, Section, write_page
from boltbox.detector.system.atomic_file import remove
from boltbox.detector.system.file_names import common_folder, inside

LISTED = 500  # findings of a kind; all are in doctor.json
PICTURES = 6  # of a kind
ROOM = (-3, -3, 3, 3)  # pixels; around the boxes that findings are about, which may have no size
SPLIT_COLUMNS = ("images", "background", "boxes")


def write_diagnosis(
    path: Path, diagnosis: Diagnosis, datasets: Mapping[str, DetectionDataset]
) -> None:
    """Write the page: counts, a picture of the labels, findings by kind with cut-outs of the images
    that have most of them.

    Args:
        path: of the HTML file; beside it comes plots/labels.png.
        diagnosis: of the data set.
        datasets: by split, for the picture of the labels and the boxes in the cut-outs.
    """
    labels = {
        image: dataset.labels[i].boxes
        for dataset in datasets.values()
        for i, image in enumerate(dataset.files)
    }
    folder = common_folder([f.file for f in diagnosis.findings if f.file])
    text = [diagnosis.verdict(), *([f"Files are in {folder}"] if folder else [])]
    sections, values = [Section("Findings", text)], diagnosis.statistics
    if splits := values.get("splits"):
        picture = path.parent / "plots/labels.png"
        remove(picture)  # of an earlier examination
        draw_labels(datasets, values["image_size"], picture)
        rows = [(split, *(counts[c] for c in SPLIT_COLUMNS)) for split, counts in splits.items()]
        text, table = ["Background: images without objects."], [("split", *SPLIT_COLUMNS), *rows]
        sections.append(Section("Labels", text, table, [picture] if picture.exists() else []))
        counts = [of_split["class_counts"] for of_split in splits.values()]
        table = [("class", *splits), *zip(values["names"], *counts, strict=True)]
        sections.append(Section("Classes", table=table))
    sections += [_findings(group, labels, folder) for group in by_kind(diagnosis.findings)]
    write_page(path, f"Doctor: {diagnosis.source}", sections)


def _findings(
    findings: Sequence[Finding], labels: Mapping[str, np.ndarray], folder: str
) -> Section:
    """The findings of one kind. labels: boxes (n, 4) by image. folder: files are named from there
    on."""
    rows = [("file", "problem")]
    about: dict[str, list[tuple[Finding, str]]] = {}
    for f in findings:
        file = inside(f.file, folder) if f.file else f.split
        rows.append((", ".join(filter(None, (file, f.where))), f.problem))
        if f.image:
            about.setdefault(f.image, []).append((f, rows[-1][0]))
    crops = []
    for image in sorted(about, key=lambda image: -len(about[image]))[:PICTURES]:
        finding, place = about[image][0]
        for path in filter(None, (image, finding.other)):
            boxes = (
                np.array([f.box for f, _ in about.get(path, ()) if f.box], float).reshape(-1, 4)
                + ROOM
            )
            around = boxes[0] if len(boxes) else None
            with standard_error():  # what decoders write of damaged files
                picture = crop_around(path, around, boxes, labels.get(path, np.zeros((0, 4))))
            crops.append(Crop(picture, place, inside(path, folder)))
    title = f"{findings[0].severity}: {findings[0].kind} ({len(findings)})"
    more = len(findings) - LISTED
    text = [f"{more} further ones are in doctor.json"] if more > 0 else []
    return Section(title, text, rows[: LISTED + 1], crops=crops)
