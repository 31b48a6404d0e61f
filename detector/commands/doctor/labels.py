"""What is wrong in label files: what training drops, and what it uses as it is."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile, format_class
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats.format import PerImageFormat, Split

PAST_FRAME = 0.25  # pixels; less is the rounding of the fractions in a label file
TINY = 2.0  # pixels; the augmentation keeps only boxes with both sides above
LISTED = 10  # class names in a sentence
# others are faults
_SEVERITIES = {
    "duplicate_box": "warning",
    "orphan_labels": "warning",
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


def examine_labels(
    file: DatasetFile, split: str, dataset: DetectionDataset, image_size: int
) -> Iterator[Finding]:
    """Report labels that training uses as they are, although they may be wrong.

    Args:
        file: the dataset.
        split: train, val or test.
        dataset: of the split.
        image_size: longer side of the network's input in pixels.

    Yields:
        The findings.
    """
    images = len(dataset)
    unlabelled = dataset.unlabelled
    if not len(dataset.labels.boxes):
        problem = (
            f"none of its {images} images has a usable box, which training refuses;"
            f" {unlabelled} have no label file of format {file.format}"
        )
        yield Finding("fault", "unusable_split", problem, split=split)
        return
    if unlabelled * 2 > images:
        problem = (
            f"{unlabelled} of {images} images have no label file; are the labels"
            " in the right folder?"
        )
        yield Finding("warning", "mostly_unlabelled", problem, split=split)
    sizes = dataset.labels.sizes.tolist()
    for image, source, size in zip(dataset.files, dataset.sources, sizes, strict=True):
        if not source.file:
            problem = "no label file; it counts as background"
            yield Finding("note", "missing_label_file", problem, image, split, image=image)
        if source.size and list(source.size) != size:
            problem = (
                f"it has {size[1]}x{size[0]} px, {source.file} says"
                f" {source.size[1]}x{source.size[0]} px; its boxes may not fit"
            )
            yield Finding("fault", "wrong_size", problem, image, split, image=image)
    yield from _missing_classes(split, dataset)
    yield from _boxes(split, dataset, image_size)


def _missing_classes(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    counts = dataset.class_counts().tolist()
    missing = [name for name, count in zip(dataset.names, counts, strict=True) if not count]
    if missing:
        listed = ", ".join(missing[:LISTED])
        problem = f"{len(missing)} of {len(counts)} classes without an example, first: {listed}"
        yield Finding("warning", "class_without_examples", problem, split=split)


def _boxes(split: str, dataset: DetectionDataset, image_size: int) -> Iterator[Finding]:
    """Boxes outside or past the frame, duplicates (YOLO text: in `left_out`), and boxes that the
    augmentation drops."""
    table = dataset.labels
    sizes = table.sizes[table.image_of, ::-1]  # (objects, 2) width, height
    low = table.boxes[:, :2]
    high = table.boxes[:, 2:]
    past = np.concatenate((-low, high - sizes), 1).max(1)  # pixels
    outside = np.any((low >= sizes) | (high <= 0), 1)
    rows = np.column_stack((table.image_of, table.classes, table.crowd, table.boxes))
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    again = first[inverse.ravel()] != np.arange(len(rows))
    scaled = dataset.object_sizes(image_size)
    tiny = (scaled <= TINY).any(1) & ~table.crowd

    def finding(k: int, severity: str, kind: str, problem: str) -> Finding:
        i = int(table.image_of[k])
        source = dataset.sources[i]
        place = source.places[k - int(table.starts[i])]
        box = tuple(table.boxes[k].tolist())
        return Finding(severity, kind, problem, source.file, split, place, dataset.files[i], box)

    for k in np.flatnonzero(outside).tolist():
        problem = f"the box lies outside the image of {sizes[k, 0]}x{sizes[k, 1]} px"
        yield finding(k, "fault", "box_outside_frame", problem)
    for k in np.flatnonzero((past > PAST_FRAME) & ~outside).tolist():
        problem = (
            f"the box reaches {past[k]:.3g} px past the frame of {sizes[k, 0]}x{sizes[k, 1]} px"
        )
        yield finding(k, "warning", "box_past_frame", problem)
    for k in np.flatnonzero(again).tolist():
        yield finding(k, "warning", "duplicate_box", "duplicate of an earlier object")
    for k in np.flatnonzero(tiny).tolist():
        problem = (
            f"the box is {scaled[k, 0]:.1f}x{scaled[k, 1]:.1f} px at --data.image_size"
            f" {image_size}; the augmentation drops boxes of {TINY:g} px or less"
        )
        yield finding(k, "warning", "tiny_box", problem)


def examine_orphans(
    file: DatasetFile, datasets: Mapping[str, DetectionDataset]
) -> Iterator[Finding]:
    """Report label files without an image.

    Args:
        file: the dataset.
        datasets: its splits that could be opened.

    Yields:
        The findings.
    """
    kind = format_class(file.format)
    if not issubclass(kind, PerImageFormat):
        return
    label_format = kind(Split("", (), file.root))
    image_folders = defaultdict(set)
    for dataset in datasets.values():
        lost = [fault.image for fault in dataset.faults if not fault.where]
        for image in dataset.files + lost:
            image_folders[Path(label_format.label_path(image)).parent].add(Path(image).parent)
    for labels, folders in sorted(image_folders.items()):
        if labels in folders:  # other text files may be there
            continue
        stems = {"classes"}  # labelImg writes classes.txt beside the labels
        for folder in folders:
            stems.update(path.stem for path in folder.glob("*"))
        for path in sorted(labels.glob(f"*{label_format.suffix}")):
            if path.stem not in stems:
                problem = f"no image of this name in {', '.join(map(str, sorted(folders)))}"
                yield Finding("warning", "orphan_labels", problem, str(path))
