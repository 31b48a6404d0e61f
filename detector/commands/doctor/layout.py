"""What is wrong in the folders of a data set: files that nothing refers to, or that several things
do."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import format_class


def examine_layout(file: DatasetFile, datasets: dict[str, DetectionDataset]) -> list[Finding]:
    """Orphans, clashes and wrong suffixes in the folders of the splits that could be opened; names
    that are nearly the same."""
    splits = {
        split: (file.form(split), all_images(dataset), _by_file(dataset))
        for split, dataset in datasets.items()
    }
    owners: dict[Path, set[str]] = defaultdict(set)  # the splits of a folder
    for split, (form, images, _) in splits.items():
        for folder in {*map(Path, map(os.path.dirname, images)), *form.label_folders(images)}:
            owners[folder].add(split)
    found = [*_splits(file), *_names(file)]
    for r in format_class(file.format).examine(splits):
        own = owners[Path(r.file).parent]
        found.append(
            Finding(
                r.severity, r.kind, min(own) if len(own) == 1 else "", r.file, r.where, r.problem
            )
        )
    return found


def all_images(dataset: DetectionDataset) -> list[str]:
    """Those too that are left out."""
    return [*dataset.files, *(fault.image for fault in dataset.report.lost_images)]


def _by_file(dataset: DetectionDataset) -> dict[str, list[str]]:
    """The images in use, each once, by label file."""
    images: dict[str, dict[str, None]] = defaultdict(dict)
    for image, source in zip(dataset.files, dataset.sources, strict=True):
        if source.file:
            images[source.file][image] = None
    return {file: list(found) for file, found in images.items()}


def _splits(file: DatasetFile) -> Iterator[Finding]:
    for split in ("train", "val"):
        if split not in file.splits:
            problem = f"the key `{split}` is missing; training needs train and val"
            yield Finding("warning", "missing_split", split, file.source, "", problem)


def _names(file: DatasetFile) -> Iterator[Finding]:
    alike = defaultdict(list)
    for name in file.names:
        alike[" ".join(name.lower().split())].append(name)
    for names in alike.values():
        if len(names) > 1:
            problem = (
                f"the names {', '.join(map(repr, names))} differ in capitals and spaces only; are"
                " they one class?"
            )
            yield Finding("warning", "similar_names", "", file.source, "", problem)
