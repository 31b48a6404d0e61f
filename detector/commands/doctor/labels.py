"""What may be wrong in labels and label files, although training uses them as they are."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from os.path import join, splitext

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile, format_class
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.file_list import list_folder
from boltbox.detector.data.formats.format import PerImageFormat
from boltbox.detector.data.images import SUFFIXES
from boltbox.detector.data.label_table import LabelTable

PAST_FRAME = 0.25  # pixels; less is the rounding of the fractions in a label file
TINY = 2.0  # pixels; the augmentation keeps only boxes with both sides above
LISTED = 10  # class names in a sentence
BLOCK = 2**17  # images looked at together


def examine_labels(
    file: DatasetFile,
    datasets: Mapping[str, DetectionDataset],
    image_size: int,
    tile_size: int | None = None,
) -> Iterator[Finding]:
    """Report label files without an image, and labels that training uses as they are, although they
    may be wrong. No image is opened.

    Args:
        file: the dataset.
        datasets: its splits that could be opened.
        image_size: longer side of the network's input in pixels.
        tile_size: sides of the tiles in pixels of the file; None: images are whole.

    Yields:
        The findings.
    """
    yield from _orphans(file, datasets)
    for split, dataset in datasets.items():
        if not len(dataset.labels.boxes):
            problem = (
                f"none of its {len(dataset)} images has a usable box, which training refuses;"
                f" {dataset.unlabelled} have no label file of format {file.format}"
            )
            yield Finding("unusable_split", problem, split=split)
            continue
        yield from _incomplete(split, dataset)
        for start in range(0, len(dataset), BLOCK):
            yield from _boxes(split, dataset, image_size, tile_size, start)


def _incomplete(split: str, dataset: DetectionDataset) -> Iterator[Finding]:
    """Images without a label file, or with one that is about another size; classes without an
    example."""
    images = len(dataset)
    unlabelled = dataset.unlabelled
    if unlabelled * 2 > images:
        problem = (
            f"{unlabelled} of {images} images have no label file; are the labels"
            " in the right folder?"
        )
        yield Finding("mostly_unlabelled", problem, split=split)
    sizes = dataset.labels.sizes
    for i in np.flatnonzero(dataset.label_files.lengths == 0).tolist():
        image = dataset.files[i]
        problem = "no label file; it counts as background"
        yield Finding("missing_label_file", problem, image, split, image=image)
    has_wrong_size = dataset.label_sizes.any(1) & (dataset.label_sizes != sizes).any(1)
    for i in np.flatnonzero(has_wrong_size).tolist():
        image = dataset.files[i]
        height, width = sizes[i]
        said_height, said_width = dataset.label_sizes[i]
        problem = (
            f"it has {width}x{height} px, {dataset.label_files[i]} says"
            f" {said_width}x{said_height} px; its boxes may not fit"
        )
        yield Finding("wrong_size", problem, image, split, image=image)
    counts = dataset.class_counts().tolist()
    missing = [name for name, count in zip(dataset.names, counts, strict=True) if not count]
    if missing:
        listed = ", ".join(missing[:LISTED])
        problem = f"{len(missing)} of {len(counts)} classes without an example, first: {listed}"
        yield Finding("class_without_examples", problem, split=split)


def _boxes(
    split: str, dataset: DetectionDataset, image_size: int, tile_size: int | None, start: int
) -> Iterator[Finding]:
    """Boxes outside or past the frame, duplicates (those of YOLO text are dropped before), and
    boxes that the augmentation drops, in BLOCK images from `start` on."""
    table = dataset.labels.part(start, start + BLOCK)
    first = int(dataset.labels.starts[start])
    image_of = table.image_of
    sizes = table.sizes[image_of, ::-1]  # (objects, 2) width, height
    low = table.boxes[:, :2]
    high = table.boxes[:, 2:]
    past = np.concatenate((-low, high - sizes), 1).max(1)  # pixels
    outside = np.any((low >= sizes) | (high <= 0), 1)
    scaled = table.object_sizes(image_size, tile_size)
    found = {
        "box_outside_frame": outside,
        "box_past_frame": (past > PAST_FRAME) & ~outside,
        "duplicate_box": _duplicates(table),
        "tiny_box": (scaled <= TINY).any(1) & ~table.crowd,
    }
    for kind, objects in found.items():
        for k in np.flatnonzero(objects).tolist():
            frame = f"{sizes[k, 0]}x{sizes[k, 1]} px"
            if kind == "box_outside_frame":
                problem = f"the box lies outside the image of {frame}"
            elif kind == "box_past_frame":
                problem = f"the box reaches {past[k]:.3g} px past the frame of {frame}"
            elif kind == "duplicate_box":
                problem = "duplicate of an earlier object"
            else:
                problem = (
                    f"the box is {scaled[k, 0]:.1f}x{scaled[k, 1]:.1f} px at --data.image_size"
                    f" {image_size}; the augmentation drops boxes of {TINY:g} px or less"
                )
            i = start + int(image_of[k])
            file = dataset.label_files[i]
            place = dataset.places[first + k]
            box = tuple(table.boxes[k].tolist())
            yield Finding(kind, problem, file, split, place, dataset.files[i], box)


def _duplicates(table: LabelTable) -> np.ndarray:
    """(N,) whether an object is equal to an earlier one of its image."""
    left = (table.boxes[:, 0] + np.float32(0)).view(np.uint32)  # 0 for -0
    code = table.image_of.astype(np.uint64) << 32 | left
    _, of_object, counts = np.unique(code, return_inverse=True, return_counts=True)
    likely = np.flatnonzero(counts[of_object] > 1)  # to compare all columns of all would take long
    duplicates = np.zeros(len(code), bool)
    columns = (table.image_of, table.classes, table.crowd, table.boxes)
    duplicates[likely] = repeated(*[column[likely] for column in columns])
    return duplicates


def repeated(*columns: np.ndarray) -> np.ndarray:
    """(n,) whether a row is equal to an earlier one.

    Args:
        columns: (n,) or (n, k).
    """
    rows = np.column_stack(columns)
    _, first = np.unique(rows, axis=0, return_index=True)
    again = np.ones(len(rows), bool)
    again[first] = False
    return again


def _orphans(file: DatasetFile, datasets: Mapping[str, DetectionDataset]) -> Iterator[Finding]:
    """Label files without an image."""
    kind = format_class(file.format)
    if not issubclass(kind, PerImageFormat):
        return
    image_folders = defaultdict(set)
    for dataset in datasets.values():
        for labels, images in dataset.folders:
            image_folders[labels].add(images)
    orphans = {}
    for labels, folders in sorted(image_folders.items()):
        if labels in folders:  # other text files may be there
            continue
        stems = {"classes"}  # labelImg writes classes.txt beside the labels
        for folder in folders:
            for name in list_folder(folder) or ():
                stem, suffix = splitext(name)
                if suffix.lower() in SUFFIXES:
                    stems.add(stem)
        for name in sorted(list_folder(labels) or ()):
            stem, suffix = splitext(name)
            if suffix == kind.suffix and stem not in stems:
                orphans[join(labels, name)] = ", ".join(sorted(folders))
    used: set[str] = set()
    if orphans:  # a list may name images of any suffix
        for dataset in datasets.values():
            used.update(dataset.label_files)
    suffixes = ", ".join(sorted(SUFFIXES))
    for path, places in orphans.items():
        if path not in used:
            problem = f"no image of this name in {places} ({suffixes})"
            yield Finding("orphan_labels", problem, path)
