"""What is wrong in label files: what training drops, and what it uses as it is."""

from collections.abc import Callable, Iterator

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset

MAX_WRONG_SIZES = 10  # reported one by one
PAST_FRAME = 0.25  # pixels; less is the rounding of the fractions in a label file
# others are faults
_SEVERITIES = {
    "duplicate_box": "warning",
    "orphan_annotation": "warning",
    "difficult_object": "note",
}


def left_out(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """Report what training drops.

    Args:
        split: train, val or test.
        dataset: of the split.

    Yields:
        A finding for each fault that the dataset's reader recorded.
    """
    for f in dataset.faults:
        severity = _SEVERITIES.get(f.kind, "fault")
        yield Finding(severity, f.kind, f.problem, f.file, split, f.where, f.image, f.box)


def examine_labels(file: DatasetFile, split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """Report labels that training uses as they are, although they may be wrong.

    Args:
        file: the dataset.
        split: train, val or test.
        dataset: of the split.

    Yields:
        The findings.
    """
    images = len(dataset)
    unlabelled = dataset.unlabelled
    if images and not len(dataset.labels.boxes):
        problem = (
            f"none of its {images} images has a usable box, which training refuses;"
            f" {unlabelled} have no label file of format {file.format}"
        )
        yield Finding("fault", "no_boxes", problem, split=split)
    elif unlabelled * 2 > images:
        problem = (
            f"{unlabelled} of {images} images have no label file; are the labels"
            " in the right folder?"
        )
        yield Finding("warning", "mostly_unlabelled", problem, split=split)
    for image, source in zip(dataset.files, dataset.sources, strict=True):
        if not source.file:
            problem = "no label file; it counts as background"
            yield Finding("note", "missing_label_file", problem, image, split, image=image)
    yield from _wrong_sizes(split, dataset)
    yield from _boxes(split, dataset)


def _wrong_sizes(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """Images of another size than their labels say; many are one finding."""
    findings = []
    sizes = dataset.labels.sizes.tolist()
    for image, source, size in zip(dataset.files, dataset.sources, sizes, strict=True):
        if source.size and list(source.size) != size:
            problem = (
                f"it has {size[1]}x{size[0]} px, {source.file} says"
                f" {source.size[1]}x{source.size[0]} px; its boxes may not fit"
            )
            findings.append(Finding("fault", "wrong_size", problem, image, split, image=image))
    if len(findings) > MAX_WRONG_SIZES:
        first = findings[0]
        problem = (
            f"{len(findings)} of {len(dataset)} images have another size than their labels say;"
            f" if the images were resized after labelling, no box fits; the first: {first}"
        )
        findings = [first._replace(problem=problem, file="")]
    yield from findings


def _boxes(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """Boxes outside or past the frame, and duplicates (YOLO text: in `left_out`)."""
    table = dataset.labels
    sizes = table.sizes[table.image_of, ::-1]  # (objects, 2) width, height
    low = table.boxes[:, :2]
    high = table.boxes[:, 2:]
    past = np.concatenate((-low, high - sizes), 1).max(1)  # pixels
    outside = np.any((low >= sizes) | (high <= 0), 1)
    past_frame = (past > PAST_FRAME) & ~outside
    rows = np.column_stack((table.image_of, table.classes, table.crowd, table.boxes))
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    again = first[inverse.ravel()] != np.arange(len(rows))

    def lies_outside(k: int) -> str:
        return f"the box lies outside the image of {sizes[k, 0]}x{sizes[k, 1]} px"

    def reaches_past(k: int) -> str:
        return f"the box reaches {past[k]:.3g} px past the frame of {sizes[k, 0]}x{sizes[k, 1]} px"

    def is_duplicate(k: int) -> str:
        return "duplicate of an earlier object"

    yield from of_objects("fault", "box_outside_frame", split, dataset, outside, lies_outside)
    yield from of_objects("warning", "box_past_frame", split, dataset, past_frame, reaches_past)
    yield from of_objects("warning", "duplicate_box", split, dataset, again, is_duplicate)


def of_objects(
    severity: str,
    kind: str,
    split: str,
    dataset: DetectionDataset,
    selected: np.ndarray,
    problem: Callable[[int], str],
) -> Iterator[Finding]:
    """Report objects of a split.

    Args:
        severity: of the findings.
        kind: of the findings.
        split: train, val or test.
        dataset: of the split.
        selected: (N,) bool, which objects to report.
        problem: the sentence on object k.

    Yields:
        A finding for each object.
    """
    table = dataset.labels
    for k in np.flatnonzero(selected).tolist():
        i = int(table.image_of[k])
        source = dataset.sources[i]
        place = source.places[k - int(table.starts[i])]
        box = tuple(table.boxes[k].tolist())
        yield Finding(severity, kind, problem(k), source.file, split, place, dataset.files[i], box)
