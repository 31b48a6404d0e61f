"""The examination of a dataset, and its short form before a training run."""

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
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

MAX_KINDS = 5  # that `brief` names
SAME_OBJECT = 0.8  # IoU of the boxes that two people draw around an object


def open_splits(
    file: DatasetFile, single_class: bool = False
) -> tuple[dict[str, DetectionDataset], list[Finding]]:
    """Open the splits of a dataset; objects of classes without a name are dropped and reported.

    Args:
        file: the dataset.
        single_class: all objects are of one class.

    Returns:
        The splits that can be opened, train first, and a finding for each of the others.

    Raises:
        InputError: no split can be opened.
    """
    datasets = {}
    unusable = []
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
    """Examine everything; every image of the splits is decoded.

    Args:
        file: the dataset.
        datasets: its splits that could be opened.
        image_size: longer side of the network's input in pixels.

    Returns:
        The diagnosis.
    """
    images = {split: dataset.files for split, dataset in datasets.items()}
    places = {}
    for dataset in datasets.values():
        for i, image in enumerate(dataset.files):
            places[image] = (dataset.labels, i)
    findings: list[Finding] = []
    for finding in examine_images(images):
        if finding.kind.startswith("duplicate"):
            table, i = places[finding.image]
            other_table, k = places[finding.other]
            findings += _with_labels_compared(finding, table[i], other_table[k])
        else:
            findings.append(finding)
    for split, dataset in datasets.items():
        findings += left_out(split, dataset)
    values, more = _without_images(file, datasets, image_size)
    return Diagnosis(file.source, findings + more, values)


def brief(file: DatasetFile, datasets: dict[str, DetectionDataset], image_size: int) -> list[str]:
    """Examine a dataset before training; no image is opened.

    Args:
        file: the dataset.
        datasets: the splits in use, opened for training, which reports what it drops.
        image_size: longer side of the network's input in pixels.

    Returns:
        A few lines for the terminal; none if all is well.
    """
    _, findings = _without_images(file, datasets, image_size)
    groups = by_kind(f for f in findings if f.severity != "note")
    if not groups:
        return []
    lines = []
    for group in groups[:MAX_KINDS]:
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        lines.append(f"doctor: {group[0].severity}: {group[0]}{more}")
    others = f"and {len(groups) - MAX_KINDS} more kinds; " if len(groups) > MAX_KINDS else ""
    command = f"{program()} doctor --data.dataset {file.source}"
    lines.append(f"doctor: {others}all of it, and a look at the images: {command}")
    return lines


def _without_images(
    file: DatasetFile, datasets: dict[str, DetectionDataset], image_size: int
) -> tuple[dict, list[Finding]]:
    """Statistics, and the findings in labels, folders and statistics."""
    usable = {split: dataset for split, dataset in datasets.items() if len(dataset)}
    values, of_values = statistics(usable, image_size)
    findings = list(examine_folders(file, datasets))
    for split, dataset in datasets.items():
        findings += examine_labels(file, split, dataset)
    return values, findings + of_values


def _with_labels_compared(finding: Finding, here: Labels, there: Labels) -> Iterator[Finding]:
    """The finding on a copy of an image. If the copy has other objects, a fault replaces it; if its
    boxes differ a little, a note follows."""
    if not same_objects(here, there):
        numbers = f"({len(here.boxes)} here, {len(there.boxes)} there)"
        problem = f"{finding.problem}; with other boxes {numbers}, of which some are wrong"
        yield finding._replace(severity="fault", kind="different_labels", problem=problem)
        return
    yield finding
    if _rounded(here) != _rounded(there):
        problem = f"{finding.problem}; its boxes differ a little (IoU of at least {SAME_OBJECT})"
        yield finding._replace(severity="note", kind="similar_labels", problem=problem)


def _rounded(labels: Labels) -> list[list[float]]:
    """Class and xyxy in integer pixels of each object, sorted."""
    return sorted(np.column_stack((labels.classes, labels.boxes)).round().tolist())


def same_objects(a: Labels, b: Labels) -> bool:
    """Whether the objects of two images can be paired, each with one of its class at an IoU of at
    least SAME_OBJECT.

    Args:
        a: of one image.
        b: of the other, in the same pixels.
    """
    if sorted(a.classes.tolist()) != sorted(b.classes.tolist()):
        return False
    if not len(a.boxes):
        return True
    overlaps = pairwise_iou_xyxy(a.boxes.astype(float), b.boxes.astype(float))
    same_class = a.classes[:, None] == b.classes
    pairs = csr_array((overlaps >= SAME_OBJECT) & same_class)
    return bool((maximum_bipartite_matching(pairs) >= 0).all())
