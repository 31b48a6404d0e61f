"""Opening a split for training or evaluation."""

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
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
