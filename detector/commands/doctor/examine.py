"""The whole examination of a data set, and its short form before a training."""

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array, vstack
from scipy.sparse.csgraph import maximum_bipartite_matching

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding, by_kind
from boltbox.detector.commands.doctor.folders import examine_folders
from boltbox.detector.commands.doctor.images import examine_images
from boltbox.detector.commands.doctor.labels import examine_labels, left_out
from boltbox.detector.commands.doctor.statistics import statistics
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import pairwise_iou_xyxy
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import program

KINDS = 5  # that `brief` names
ALIKE = 0.8  # IoU of the boxes that two people draw around an object
BLOCK = 200  # boxes


def open_splits(
    file: DatasetFile, single_class: bool = False
) -> tuple[dict[str, DetectionDataset], list[Finding]]:
    """The splits that can be opened, train first, and a finding for each of the others. Objects of
    classes without a name are left out, and reported, unless every object is of a single class.

    Raises:
        InputError: none of the splits can be opened.
    """
    datasets, unusable = {}, []
    for split in file.splits:
        try:
            datasets[split] = file.open(split, strict=False, single_class=single_class)
        except InputError as e:
            unusable.append(Finding("fault", "unusable_split", str(e), file.source, split))
    if not datasets:
        raise InputError(unusable[0].problem)
    return datasets, unusable


def diagnose(
    file: DatasetFile, datasets: dict[str, DetectionDataset], image_size: int
) -> Diagnosis:
    """Everything that is to be reported of the splits that could be opened; every image that
    training uses is decoded.

    Args:
        image_size: longer side of the network's input in pixels.
    """
    images = {split: dataset.files for split, dataset in datasets.items()}
    findings = list(_with_labels_compared(datasets, list(examine_images(images))))
    for split, dataset in datasets.items():
        findings += left_out(split, dataset)
    values, more = _without_images(file, datasets, image_size)
    return Diagnosis(file.source, [*findings, *more], values)


def brief(file: DatasetFile, datasets: dict[str, DetectionDataset], image_size: int) -> list[str]:
    """What is worth reporting before a training, in a few lines; nothing if all is well. No image
    is opened, and what training itself reports as left out is not repeated.

    Args:
        datasets: the splits in use, opened for training. image_size: see `diagnose`.
    """
    _, findings = _without_images(file, datasets, image_size)
    groups = by_kind(f for f in findings if f.severity != "note")
    if not groups:
        return []
    lines = []
    for group in groups[:KINDS]:
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        lines.append(f"doctor: {group[0].severity}: {group[0]}{more}")
    others = f"and {len(groups) - KINDS} more kinds; " if len(groups) > KINDS else ""
    command = f"{program()} doctor --data.dataset {file.source}"
    return [*lines, f"doctor: {others}all of it, and a look at the images: {command}"]


def _without_images(
    file: DatasetFile,
    datasets: dict[str, DetectionDataset],
    image_size: int,
) -> tuple[dict, list[Finding]]:
    """Statistics, and what labels, folders and statistics give rise to."""
    usable = {split: dataset for split, dataset in datasets.items() if len(dataset)}
    values, of_values = statistics(usable, image_size)
    findings = list(examine_folders(file, datasets))
    for split, dataset in datasets.items():
        findings += examine_labels(file, split, dataset)
    return values, [*findings, *of_values]


def _with_labels_compared(
    datasets: dict[str, DetectionDataset], findings: list[Finding]
) -> Iterator[Finding]:
    """The findings. Of an image that is there twice, with other objects than its double, a fault
    takes the place of the finding; a note comes after it if the boxes differ by little."""
    places = {image: (d, i) for d in datasets.values() for i, image in enumerate(d.files)}
    for f in findings:
        if not f.kind.startswith("duplicate") or not {f.image, f.other} <= places.keys():
            yield f
            continue
        here, there = (dataset.labels[i] for dataset, i in (places[f.image], places[f.other]))
        if not same_objects(here, there):
            numbers = f"({len(here.boxes)} here, {len(there.boxes)} there)"
            problem = f"{f.problem}; with other boxes {numbers}, of which some are wrong"
            yield f._replace(severity="fault", kind="different_labels", problem=problem)
            continue
        yield f
        if _rows(here) != _rows(there):
            problem = f"{f.problem}; its boxes differ a little (IoU of at least {ALIKE})"
            yield f._replace(severity="note", kind="similar_labels", problem=problem)


def _rows(labels: Labels) -> list[list[float]]:
    """Class and xyxy in whole pixels of each object, sorted."""
    return sorted(np.column_stack((labels.classes, labels.boxes)).round().tolist())


def same_objects(a: Labels, b: Labels) -> bool:
    """Whether the objects of two images can be paired so that the two of each pair are of one class
    and their boxes overlap by an IoU of at least ALIKE."""
    if sorted(a.classes.tolist()) != sorted(b.classes.tolist()):
        return False
    near = []  # in blocks, as an image may have thousands of boxes
    for start in range(0, len(a.boxes), BLOCK):
        block = slice(start, start + BLOCK)
        overlaps = pairwise_iou_xyxy(a.boxes[block].astype(float), b.boxes.astype(float))
        same_class = a.classes[block, None] == b.classes
        near.append(csr_array((overlaps >= ALIKE) & same_class))
    if not near:
        return True
    return bool((maximum_bipartite_matching(csr_array(vstack(near))) >= 0).all())
