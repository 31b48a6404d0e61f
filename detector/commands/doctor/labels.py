"""What is wrong in label files: what training leaves out, and what it uses as it stands."""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile, format_class
from boltbox.detector.data.datasets import DetectionDataset

PAST_FRAME = 0.25  # pixels; less is the rounding of the fractions in a label file
# others are faults
_SEVERITIES = {
    "duplicate_box": "warning",
    "orphan_annotation": "warning",
    "difficult_object": "note",
}


def left_out(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """What training drops, in the words of its own report."""
    for f in dataset.faults:
        severity, rest = _SEVERITIES.get(f.kind, "fault"), (f.where, f.problem, f.image, f.box)
        yield Finding(severity, f.kind, split, f.file, *rest)


def examine_labels(file: DatasetFile, split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """What training uses as it stands, but its user should know: boxes past the frame, duplicates,
    sizes that differ, ..."""
    images, unlabelled = len(dataset), dataset.unlabelled
    if images and not len(dataset.labels.boxes):
        problem = (
            f"none of its {images} images has a usable box, which training refuses;"
            f" {unlabelled} have no label file of format {file.format}"
        )
        yield Finding("fault", "no_boxes", split, "", "", problem)
    elif unlabelled * 2 > images:
        problem = (
            f"{unlabelled} of {images} images have no label file; are the labels"
            " in the right folder?"
        )
        yield Finding("warning", "mostly_unlabelled", split, "", "", problem)
    yield from _images(split, dataset, format_class(file.format).shared)
    yield from _boxes(split, dataset)


def _images(split: str, dataset: DetectionDataset, shared: bool) -> Iterator[Finding]:
    """What concerns all labels of an image. shared: label files speak of many images."""
    dropped = {fault.image for fault in dataset.faults if fault.where}
    counts, sizes = np.diff(dataset.labels.starts), dataset.labels.sizes.tolist()
    for image, source, size, count in zip(
        dataset.files, dataset.sources, sizes, counts, strict=True
    ):
        if not source.file:
            problem = "no label file; it counts as background"
            yield Finding("note", "missing_label_file", split, image, "", problem, image)
        elif not count and image not in dropped:
            place, problem = image if shared else source.file, "no labels; it counts as background"
            yield Finding("note", "no_objects", split, place, "", problem)
        if source.size and list(source.size) != size:
            real, given = (f"{width}x{height} px" for height, width in (size, source.size))
            problem = f"it has {real}, {source.file} says {given}; its boxes may not fit"
            yield Finding("fault", "wrong_size", split, image, "", problem, image)
    for image, times in Counter(dataset.files).items():
        if times > 1:
            problem = f"listed {times} times, and used as often"
            yield Finding("warning", "listed_twice", split, image, "", problem, image)


def _boxes(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """Boxes past the frame, and boxes that are there twice. In YOLO text these are left out, and
    reported there."""
    table = dataset.labels
    counts = np.diff(table.starts)
    sizes = np.repeat(table.sizes[:, ::-1], counts, 0)  # (objects, 2) width, height
    low, high = table.boxes[:, :2], table.boxes[:, 2:]
    past = np.concatenate((-low, high - sizes), 1).max(1)  # pixels
    outside = (low >= sizes).any(1) | (high <= 0).any(1)
    for kind, chosen, words in (
        ("box_outside_frame", outside, "lies outside the image"),
        ("box_past_frame", (past > PAST_FRAME) & ~outside, "reaches {:.3g} px past the frame"),
    ):
        problems = (
            (k, f"the box {words.format(past[k])} of {sizes[k, 0]}x{sizes[k, 1]} px")
            for k in np.flatnonzero(chosen).tolist()
        )
        severity = "fault" if kind == "box_outside_frame" else "warning"
        yield from of_objects(severity, kind, split, dataset, problems)
    image = np.repeat(np.arange(len(counts)), counts)
    rows = np.column_stack((image, table.classes, table.crowd, table.boxes))
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[inverse.ravel()] != np.arange(len(rows))).tolist()
    twice = ((k, "duplicate of an earlier object") for k in again)
    yield from of_objects("warning", "duplicate_box", split, dataset, twice)


def of_objects(
    severity: str,
    kind: str,
    split: str,
    dataset: DetectionDataset,
    problems: Iterable[tuple[int, str]],
) -> Iterator[Finding]:
    """Findings about objects of a split. problems: number in the split's label table, sentence."""
    table = dataset.labels
    for k, problem in problems:
        i = table.image_of(k)
        source, box = dataset.sources[i], tuple(table.boxes[k].tolist())
        place = source.places[k - int(table.starts[i])]
        yield Finding(severity, kind, split, source.file, place, problem, dataset.files[i], box)
