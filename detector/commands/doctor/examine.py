"""The whole examination of a data set."""

import sys
from collections.abc import Callable, Collection

import numpy as np
from tqdm import tqdm

from boltbox.detector.commands.doctor.finding import CONCLUSIONS, SEVERITIES, Diagnosis, Finding
from boltbox.detector.commands.doctor.labels import examine_labels, left_out
from boltbox.detector.commands.doctor.layout import examine_layout
from boltbox.detector.commands.doctor.memory import remember, state_of
from boltbox.detector.commands.doctor.pictures import examine_images
from boltbox.detector.commands.doctor.statistics import statistics
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.system.errors import InputError

# left out, but there to be seen
IMAGE_KINDS = ("unreadable_image", "too_small_image", "too_large_image", "no_usable_object")


def examine(
    file: DatasetFile, image_size: int, anchors: np.ndarray | None, show_progress: bool
) -> Diagnosis:
    """Everything that is to be said of a data set; every image is decoded.

    Args:
        file: the data set. image_size: longer side of the network's input in pixels.
        anchors: (levels, A, 2) pixels of the network's input, to say how well they fit; None: not
            looked at.
        show_progress: on stderr.

    Raises:
        InputError: none of the splits can be opened.
    """
    datasets, findings = open_splits(file, show_progress)
    return diagnose(file, datasets, findings, image_size, anchors, show_progress)


def open_splits(
    file: DatasetFile, show_progress: bool = False
) -> tuple[dict[str, DetectionDataset], list[Finding]]:
    """The splits that can be opened, train first, and a finding for each of the others. Objects of
    classes without a name are left out, and reported."""
    datasets: dict[str, DetectionDataset] = {}
    errors: dict[str, InputError] = {}
    for split in _bar(file.splits, "labels", show_progress, delay=1.0):
        try:
            datasets[split] = file.open(split, strict=False)
        except InputError as e:
            errors[split] = e
    if errors and not datasets:
        raise next(iter(errors.values()))
    return datasets, [
        Finding("fault", "unusable_split", split, file.source, "", str(e))
        for split, e in errors.items()
    ]


def diagnose(
    file: DatasetFile,
    datasets: dict[str, DetectionDataset],
    findings: list[Finding],
    image_size: int,
    anchors: np.ndarray | None,
    show_progress: bool,
) -> Diagnosis:
    """`examine`, for those who have opened the splits already and keep them. The findings come most
    severe first."""
    images = {split: images_of(dataset) for split, dataset in datasets.items()}
    with _bar(range(sum(map(len, images.values()))), "images", show_progress) as bar:
        of_images = examine_images(images, bar.update, _objects(datasets))
    broken = {f.file for f in of_images if f.severity == "fault"}
    findings = [*findings, *of_images]
    for split, dataset in datasets.items():
        own = [f for f in of_images if f.severity == "fault" and f.split == split]
        remember(file.source, f"images of {split}", state_of(dataset.files), own)
        findings += [f for f in left_out(split, dataset) if f.file not in broken]
        findings += examine_labels(file, split, dataset)
    values, of_values = statistics(
        {s: d for s, d in datasets.items() if len(d)}, image_size, anchors
    )
    findings += [*examine_layout(file, datasets), *of_values]
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.kind not in CONCLUSIONS))
    return Diagnosis(file.source, findings, values)


def _objects(datasets: dict[str, DetectionDataset]) -> Callable[[str], np.ndarray | None]:
    """Of an image by its path: (n, 5) class, xyxy in pixels; None if it is in no split, or left
    out."""
    places = {
        file: (dataset, i) for dataset in datasets.values() for i, file in enumerate(dataset.files)
    }

    def objects(path: str) -> np.ndarray | None:
        if path not in places:
            return None
        dataset, i = places[path]
        return np.column_stack((dataset.labels[i].classes, dataset.labels[i].boxes))

    return objects


def _bar(things: Collection[object], name: str, shown: bool, delay: float = 0.0) -> tqdm:
    """A progress bar over things, on stderr; none if they are done within `delay` seconds."""
    # seconds between its lines, which add up in a log file
    pause = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(
        things, name, unit="", mininterval=pause, delay=delay, disable=not shown, file=sys.stderr
    )


def images_of(dataset: DetectionDataset) -> list[str]:
    """The images of a split, each once, those too that training cannot use."""
    lost = [fault.file for fault in dataset.report.lost_images if fault.kind in IMAGE_KINDS]
    return list(dict.fromkeys([*dataset.files, *lost]))
