"""The data sets of a run: the splits of its data set's file, and the images to predict on."""

from collections.abc import Sequence

import numpy as np

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.report import DataReport, Fault
from boltbox.detector.data.sample import Labels
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


def open_split(file: DatasetFile, split: str, single_class: bool) -> DetectionDataset:
    """train, val or test; what was left out is printed.

    Raises:
        InputError: no usable box, or a class without a name.
    """
    dataset = file.open(split)
    if single_class:
        dataset.merge_classes()
    dataset.check_classes()
    for line in dataset.report.lines(split):
        rank_zero_print(line)
    if not dataset.report.boxes:
        hint = f", first: {dataset.report.faults[0]}" if dataset.report.faults else ""
        raise InputError(
            f"{file.source}: no usable box in {split} ({dataset.report.images} images{hint})"
        )
    return dataset


def open_images(files: Sequence[str], names: list[str]) -> DetectionDataset:
    """The usable ones of these image files, without labels; the others are named. names: of the
    classes."""
    report, kept, labels = DataReport(), [], []
    for file, size in zip(files, image_sizes(files), strict=True):
        if isinstance(size, str):
            report.lost_images.append(Fault(file, "", size))
        else:
            kept.append(file)
            labels.append(Labels.of(np.zeros((0, 4)), np.zeros(0), *size))
    for fault in report.lost_images:
        rank_zero_print(f"left out: {fault}")
    return DetectionDataset(kept, labels, names, report)
