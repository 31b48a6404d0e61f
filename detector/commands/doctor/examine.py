"""The examination of a dataset."""

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding
from boltbox.detector.commands.doctor.images import examine_images
from boltbox.detector.commands.doctor.labels import examine_labels
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.system.errors import InputError


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
            problem = str(e).removeprefix(f"{file.source}: ")
            unusable.append(Finding("unusable_split", problem, file.source, split))
    if not datasets:
        raise InputError(str(unusable[0]))
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
    findings = list(examine_images(datasets))
    boxes = {}
    for split, dataset in datasets.items():
        for f in dataset.faults:
            findings.append(Finding(f.kind, f.problem, f.file, split, f.where, f.image, f.box))
        boxes[split] = dict(zip(dataset.names, dataset.class_counts().tolist(), strict=True))
    findings += examine_labels(file, datasets, image_size, tile_size)
    return Diagnosis(file.source, findings, boxes)
