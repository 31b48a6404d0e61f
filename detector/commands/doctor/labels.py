"""What is wrong in label files: what training leaves out (its own report says that), and what it
takes as it stands."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.written_size import other_size
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import format_class
from boltbox.detector.data.label_table import LabelSource
from boltbox.detector.data.report import Fault
from boltbox.detector.data.sample import Labels

PAST_FRAME = 0.25  # pixels; less is the rounding of the fractions in a label file
# others are faults
_SEVERITIES = {
    "duplicate_box": "warning",
    "orphan_annotation": "warning",
    "difficult_object": "note",
}


def left_out(split: str, dataset: DetectionDataset) -> list[Finding]:
    """What training drops, in the words of its own report."""

    def finding(fault: Fault) -> Finding:
        return Finding(
            _SEVERITIES.get(fault.kind, "fault"),
            fault.kind,
            split,
            fault.file,
            fault.where,
            fault.problem,
        )

    return [finding(fault) for fault in dataset.report.left_out]


def examine_labels(file: DatasetFile, split: str, dataset: DetectionDataset) -> list[Finding]:
    """What training takes as it stands, but its user should know: boxes past the frame, duplicates,
    sizes that differ, ..."""
    form, dropped = format_class(file.format), {fault.image for fault in dataset.report.faults}
    found = [
        Finding(r.severity, r.kind, split, r.file, r.where, r.problem)
        for r in dataset.report.remarks
    ]
    for image, labels, source in zip(dataset.files, dataset.labels, dataset.sources, strict=True):
        named = image if form.shared else source.file
        if not source.file:
            found.append(
                Finding(
                    "note",
                    "missing_label_file",
                    split,
                    image,
                    "",
                    "no label file; it counts as background",
                )
            )
        elif not len(labels.boxes) and image not in dropped:
            found.append(
                Finding(
                    "note",
                    "no_objects",
                    split,
                    named,
                    "",
                    "its labels are empty; it counts as background",
                )
            )
        found += _wrong_size(split, image, labels, source)
        if len(labels.boxes):
            found += _mixture(split, named, labels)
            found += _twice(split, source, labels)
            found += _past_frame(split, source, labels)
    for image, times in Counter(dataset.files).items():
        if times > 1:
            found.append(
                Finding(
                    "warning",
                    "listed_twice",
                    split,
                    image,
                    "",
                    f"listed {times} times, and used as often",
                )
            )
    return [*other_size(split, dataset, form.in_fractions), *found, *_whole(file, split, dataset)]


def _wrong_size(split: str, image: str, labels: Labels, source: LabelSource) -> Iterator[Finding]:
    """The label file gives the image another size."""
    real = labels.height, labels.width
    if source.size and source.size != real:
        turned = " turned as its EXIF data says" if source.size == real[::-1] else ""
        problem = (
            f"the image{turned} has {real[1]}x{real[0]} px, {source.file} says"
            f" {source.size[1]}x{source.size[0]}"
        )
        yield Finding("fault", "wrong_size", split, image, "", f"{problem}; its boxes may not fit")


def _mixture(split: str, named: str, labels: Labels) -> Iterator[Finding]:
    crowd = int(labels.crowd.sum())
    if crowd:
        yield Finding(
            "note",
            "crowd_region",
            split,
            named,
            "",
            f"{crowd} crowd regions; training leaves them out",
        )
    polygons = sum(
        bool(parts)
        for parts, hidden in zip(labels.polygons, labels.crowd, strict=True)
        if not hidden
    )
    boxes = len(labels.boxes) - crowd - polygons
    if polygons and boxes:
        problem = f"{boxes} boxes and {polygons} polygons in one file; each is read as what it is"
        yield Finding("note", "boxes_and_polygons", split, named, "", problem)


def _twice(split: str, source: LabelSource, labels: Labels) -> Iterator[Finding]:
    """VOC and COCO objects that occur twice; in YOLO text they are left out, and reported there."""
    seen: dict[bytes, int] = {}
    for k, row in enumerate(np.column_stack((labels.boxes, labels.classes, labels.crowd))):
        first = seen.setdefault(row.tobytes(), k)
        if first != k:
            problem = f"duplicate of {source.places[first]}"
            yield Finding("warning", "duplicate_box", split, source.file, source.places[k], problem)


def _past_frame(split: str, source: LabelSource, labels: Labels) -> Iterator[Finding]:
    boxes, size = labels.boxes, (labels.width, labels.height)
    past = np.column_stack((-boxes[:, :2], boxes[:, 2:] - size)).max(1)
    for k in np.flatnonzero(past > PAST_FRAME).tolist():
        if (boxes[k, :2] >= size).any() or (boxes[k, 2:] <= 0).any():
            problem = f"the box lies outside the image of {size[0]}x{size[1]} px"
            yield Finding(
                "fault", "box_outside_frame", split, source.file, source.places[k], problem
            )
        else:
            problem = f"the box reaches {past[k]:.3g} px past the frame of {size[0]}x{size[1]} px"
            yield Finding(
                "warning", "box_past_frame", split, source.file, source.places[k], problem
            )


def _whole(file: DatasetFile, split: str, dataset: DetectionDataset) -> list[Finding]:
    """What concerns a split as a whole."""
    images, unlabelled = len(dataset), dataset.report.unlabelled
    if images and not dataset.report.boxes:
        problem = (
            f"none of its {images} images has a usable box, which training"
            f" refuses{file.unread_labels(split, dataset)}"
        )
        return [Finding("fault", "no_boxes", split, "", "", problem)]
    if unlabelled * 2 > images:
        problem = (
            f"{unlabelled} of {images} images have no label file; are the labels in the right"
            " folder?"
        )
        return [Finding("warning", "mostly_unlabelled", split, "", "", problem)]
    return []
