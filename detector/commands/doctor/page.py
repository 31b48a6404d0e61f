"""The diagnosis as one HTML file that needs nothing else: what `templates/doctor.html` shows of
it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.commands.doctor.charts import class_chart, count_histogram, log_histogram
from boltbox.detector.commands.doctor.finding import SEVERITIES, Diagnosis, Finding
from boltbox.detector.commands.doctor.gallery import Gallery
from boltbox.detector.commands.doctor.statistics import COCO_BORDERS
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.report.drawing import PALETTE
from boltbox.detector.report.html import document
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.file_names import common_folder, inside

SHOWN = 20  # findings of a kind that are seen at once
FOLDED = 500  # further ones that can be unfolded; all are in doctor.json
PICTURES = 6  # of a kind
COLOURS = {
    name: f"rgb{PALETTE[k]}"
    for name, k in {"blue": 4, "orange": 0, "green": 2, "vermilion": 5}.items()
}
BOX_RATIOS = {2.0**k: f"1:{2**-k}" if k < 0 else f"{2**k}:1" for k in range(-5, 6)}
IMAGE_RATIOS = {
    1 / 4: "1:4",
    1 / 2: "1:2",
    3 / 4: "3:4",
    1: "1:1",
    4 / 3: "4:3",
    2: "2:1",
    4: "4:1",
}


def write_page(path: Path, diagnosis: Diagnosis, datasets: Mapping[str, DetectionDataset]) -> None:
    """Write the page: counts, charts from `diagnosis.statistics`, findings by kind with pictures of
    the worst images.

    Args:
        path: of the HTML file; its folder is made.
        diagnosis: of the data set.
        datasets: by split, for the boxes in the pictures.
    """
    statistics = diagnosis.statistics
    splits = statistics.get("splits", {})
    folder = common_folder([f.file for f in diagnosis.findings if f.file])
    page = document(
        "commands/doctor/templates/doctor.html",
        title=f"Doctor: {diagnosis.source}",
        counts={severity: diagnosis.count(severity) for severity in SEVERITIES},
        splits=[_split_row(split, counts) for split, counts in splits.items()],
        image_size=statistics.get("image_size"),
        borders=COCO_BORDERS,
        anchors=statistics.get("anchors"),
        charts=_charts(statistics) if splits else {},
        folder=folder,
        kinds=_kinds(diagnosis.findings, Gallery(datasets, diagnosis.findings), folder),
        shown=SHOWN,
        folded=FOLDED,
        **COLOURS,
    )
    write_atomically(path, lambda file: file.write(page))


def _split_row(split: str, counts: Mapping[str, Any]) -> list[object]:
    shares = [f"{counts[size]:.0%}" for size in ("small", "medium", "large")]
    median = "" if counts["median_size"] is None else f"{counts['median_size']:.1f} px"
    return [split, counts["images"], counts["background"], counts["boxes"], *shares, median]


def _charts(statistics: Mapping[str, Any]) -> dict[str, str]:
    """SVG by title; empty where there is nothing to draw."""
    histograms, drawn = statistics["histograms"], {}
    powers = {2.0**k: str(2**k) for k in range(20)}
    by_image = histograms["objects_per_image"]
    class_counts = {split: counts["class_counts"] for split, counts in statistics["splits"].items()}

    def logarithmic(
        title: str, name: str, ticks: Mapping[float, str], borders: Sequence[float] = ()
    ) -> None:
        drawn[title] = log_histogram(
            title, histograms[name]["edges"], histograms[name]["counts"], ticks, borders
        )

    logarithmic("Object size in pixels", "size_px", powers, COCO_BORDERS)
    title = "Objects in an image"
    drawn[title] = count_histogram(title, by_image["edges"], by_image["counts"])
    logarithmic("Width to height of boxes", "box_ratio", BOX_RATIOS)
    logarithmic("Width to height of images", "image_ratio", IMAGE_RATIOS)
    title = "Boxes of each class"
    drawn[title] = class_chart(title, statistics["names"], class_counts)
    return drawn


def _kinds(findings: Sequence[Finding], gallery: Gallery, folder: str) -> list[dict[str, Any]]:
    """The findings by kind, the most severe and the most frequent kind first. Files are named from
    `folder` on."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.severity, finding.kind), []).append(finding)
    order = sorted(kinds, key=lambda kind: (SEVERITIES.index(kind[0]), -len(kinds[kind])))
    return [
        {
            "severity": severity,
            "name": kind.replace("_", " ").capitalize(),
            "pictures": [
                (" | ".join(inside(file, folder) for file in picture.files), picture)
                for picture in gallery.pictures(kinds[severity, kind], PICTURES)
            ],
            "lines": [
                (_place(finding, folder), finding.problem) for finding in kinds[severity, kind]
            ],
        }
        for severity, kind in order
    ]


def _place(finding: Finding, folder: str) -> str:
    file = inside(finding.file, folder) if finding.file else finding.split
    return ", ".join(filter(None, (file, finding.where)))
