"""The examination of a dataset, and its short form before a training run."""

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding, by_kind
from boltbox.detector.commands.doctor.images import examine_images
from boltbox.detector.commands.doctor.labels import (
    examine_labels,
    examine_orphans,
    left_out,
)
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import pairwise_iou_xyxy
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import program

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
    file: DatasetFile,
    datasets: dict[str, DetectionDataset],
    image_size: int,
    tile_size: int | None = None,
) -> Diagnosis:
    """Examine everything; every image of the splits is decoded.

    Args:
        file: the dataset.
        datasets: its splits that could be opened.
        image_size: longer side of the network's input in pixels.
        tile_size: see `examine_labels`.

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
            here, i = places[finding.image]
            there, k = places[finding.other]
            if not same_objects(here[i], there[k]):
                problem = f"{finding.problem}; with other boxes, of which some are wrong"
                finding = finding._replace(
                    severity="fault", kind="different_labels", problem=problem
                )
        findings.append(finding)
    for split, dataset in datasets.items():
        findings += left_out(split, dataset)
    findings += _without_images(file, datasets, image_size, tile_size)
    boxes = {}
    for split, dataset in datasets.items():
        boxes[split] = dict(zip(dataset.names, dataset.class_counts().tolist(), strict=True))
    return Diagnosis(file.source, findings, boxes)


def brief(
    file: DatasetFile,
    datasets: dict[str, DetectionDataset],
    image_size: int,
    tile_size: int | None = None,
) -> list[str]:
    """Examine a dataset before training; no image is opened.

    Args:
        file: the dataset.
        datasets: the splits in use, opened for training, which reports what it drops.
        image_size: longer side of the network's input in pixels.
        tile_size: see `examine_labels`.

    Returns:
        A few lines for the terminal; none if all is well.
    """
    findings = _without_images(file, datasets, image_size, tile_size)
    groups = by_kind(finding for finding in findings if finding.severity != "note")
    if not groups:
        return []
    lines = []
    for group in groups:
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        lines.append(f"doctor: {group[0].severity}: {group[0]}{more}")
    command = f"{program()} doctor --data.dataset {file.source}"
    lines.append(f"doctor: all of it, and a look at the images: {command}")
    return lines


def _without_images(
    file: DatasetFile,
    datasets: dict[str, DetectionDataset],
    image_size: int,
    tile_size: int | None,
) -> list[Finding]:
    """The findings in labels and folders."""
    findings = list(examine_orphans(file, datasets))
    for split, dataset in datasets.items():
        findings += examine_labels(file, split, dataset, image_size, tile_size)
    return findings


def same_objects(a: Labels, b: Labels) -> bool:
    """Whether two images have equally many objects of each class, and each object has one of its
    class in the other image at an IoU of at least SAME_OBJECT.

    Args:
        a: of one image.
        b: of the other, in the same pixels.
    """
    if sorted(a.classes.tolist()) != sorted(b.classes.tolist()):
        return False
    overlaps = pairwise_iou_xyxy(a.boxes.astype(float), b.boxes.astype(float))
    overlaps[a.classes[:, None] != b.classes] = 0
    of_a = overlaps.max(1, initial=0)
    of_b = overlaps.max(0, initial=0)
    return bool((of_a >= SAME_OBJECT).all() and (of_b >= SAME_OBJECT).all())
