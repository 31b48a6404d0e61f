"""What is wrong in label files: what training leaves out, and what it uses as it stands."""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile, format_class
from boltbox.detector.data.datasets import DetectionDataset

MOST_SIZES = 10  # wrong ones that are reported one by one
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
        severity = _SEVERITIES.get(f.kind, "fault")
        yield Finding(severity, f.kind, f.problem, f.file, split, f.where, f.image, f.box)


def examine_labels(file: DatasetFile, split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """What training uses as it stands, but its user should know: boxes past the frame, duplicates,
    sizes that differ, ..."""
    images, unlabelled = len(dataset), dataset.unlabelled
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
    yield from _images(split, dataset, format_class(file.format).shared)
    yield from _boxes(split, dataset)


def _images(split: str, dataset: DetectionDataset, shared: bool) -> Iterator[Finding]:
    """What concerns all labels of an image. shared: label files speak of many images."""
    dropped = {fault.image for fault in dataset.faults if fault.where}
    counts, sizes = np.diff(dataset.labels.starts), dataset.labels.sizes.tolist()
    wrong_sizes = []
    for image, source, size, count in zip(
        dataset.files, dataset.sources, sizes, counts, strict=True
    ):
        if not source.file:
            problem = "no label file; it counts as background"
            yield Finding("note", "missing_label_file", problem, image, split, image=image)
        elif not count and image not in dropped:
            place, problem = image if shared else source.file, "no labels; it counts as background"
            yield Finding("note", "no_objects", problem, place, split)
        if source.size and list(source.size) != size:
            real, given = (f"{width}x{height} px" for height, width in (size, source.size))
            problem = f"it has {real}, {source.file} says {given}; its boxes may not fit"
            wrong_sizes.append(Finding("fault", "wrong_size", problem, image, split, image=image))
    if len(wrong_sizes) > MOST_SIZES:
        first = wrong_sizes[0]
        problem = (
            f"{len(wrong_sizes)} of {len(dataset)} images have another size than their labels say;"
            f" if the images were resized after labelling, no box fits; the first: {first}"
        )
        wrong_sizes = [first._replace(problem=problem, file="")]
    yield from wrong_sizes
    for image, times in Counter(dataset.files).items():
        if times > 1:
            problem = f"listed {times} times, and used as often"
            yield Finding("warning", "listed_twice", problem, image, split, image=image)


def _boxes(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """Boxes past the frame, and boxes that are there twice. In YOLO text these are left out, and
    reported there."""
    table = dataset.labels
    sizes = table.sizes[table.image_of, ::-1]  # (objects, 2) width, height
    low, high = table.boxes[:, :2], table.boxes[:, 2:]
    past = np.concatenate((-low, high - sizes), 1).max(1)  # pixels
    outside = np.any((low >= sizes) | (high <= 0), 1)
    rows = np.column_stack((table.image_of, table.classes, table.crowd, table.boxes))
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    again = first[inverse.ravel()] != np.arange(len(rows))

    def lies_outside(k: int) -> str:
        return f"the box lies outside the image of {sizes[k, 0]}x{sizes[k, 1]} px"

    def reaches_past(k: int) -> str:
        return f"the box reaches {past[k]:.3g} px past the frame of {sizes[k, 0]}x{sizes[k, 1]} px"

    def is_twice(k: int) -> str:
        return "duplicate of an earlier object"

    past_frame = (past > PAST_FRAME) & ~outside
    yield from of_objects("fault", "box_outside_frame", split, dataset, outside, lies_outside)
    yield from of_objects("warning", "box_past_frame", split, dataset, past_frame, reaches_past)
    yield from of_objects("warning", "duplicate_box", split, dataset, again, is_twice)


def of_objects(
    severity: str,
    kind: str,
    split: str,
    dataset: DetectionDataset,
    chosen: np.ndarray,
    problem: Callable[[int], str],
) -> Iterator[Finding]:
    """Findings about the objects of a split where `chosen` (N,) is true. problem: the sentence on
    object k."""
    table, objects = dataset.labels, np.flatnonzero(chosen)
    for k, i in zip(objects.tolist(), table.image_of[objects].tolist(), strict=True):
        source, box = dataset.sources[i], tuple(table.boxes[k].tolist())
        place = source.places[k - int(table.starts[i])]
        image = dataset.files[i]
        yield Finding(severity, kind, problem(k), source.file, split, place, image, box)
