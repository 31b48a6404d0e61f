"""The short form of the examination, before a training: what costs no look at the images."""

import os
from pathlib import Path

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.commands.doctor.labels import examine_labels
from boltbox.detector.commands.doctor.layout import all_images, examine_layout
from boltbox.detector.commands.doctor.memory import recall, remember, state_of
from boltbox.detector.commands.doctor.statistics import statistics
from boltbox.detector.commands.doctor.summary import by_kind, sentence
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.formats import FORMATS


def brief(
    file: DatasetFile, datasets: dict[str, DetectionDataset], image_size: int, most: int = 5
) -> list[str]:
    """What is worth saying before a training, in a few lines; nothing if all is well.

    What training leaves out is not said again. The same files are examined once; images that the
    last full examination found broken are named.

    Args:
        datasets: the splits in use, opened for training. image_size: longer side of the network's
            input in pixels.
    """
    state = _state(file, datasets, image_size)
    findings = recall(file.source, "brief", state)
    if findings is None:
        findings = _examine(file, datasets, image_size)
        remember(file.source, "brief", state, findings)
    for split, dataset in datasets.items():
        findings += recall(file.source, f"images of {split}", state_of(dataset.files)) or []
    groups = by_kind(findings)
    lines = []
    for group in groups[:most]:
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        lines.append(f"doctor: {group[0].severity}: {sentence(group[0])}{more}")
    if lines:
        options = "" if file.share is None else f" --data.split {file.share:g}"
        options += "" if file.format in FORMATS else f" --data.format {file.format}"
        others = f"and {len(groups) - most} more kinds; " if len(groups) > most else ""
        lines.append(
            f"doctor: {others}all of it, and a look at the images: cli.py doctor --data.dataset"
            f" {file.source}{options}"
        )
    return lines


def _examine(
    file: DatasetFile, datasets: dict[str, DetectionDataset], image_size: int
) -> list[Finding]:
    findings = [
        f for split, dataset in datasets.items() for f in examine_labels(file, split, dataset)
    ]
    findings += examine_layout(file, datasets)
    findings += statistics(datasets, image_size, None)[1]
    return [f for f in findings if f.severity != "note"]


def _state(file: DatasetFile, datasets: dict[str, DetectionDataset], image_size: int) -> str:
    """Of everything that the short form looks at: images, label files, and the folders that hold
    them."""
    paths: list[str] = []
    folders: list[str | Path] = []
    of_labels: list[Path] = []
    for split, dataset in datasets.items():
        paths += [*map(str, file.splits[split]), *dataset.files]
        folders += dict.fromkeys(map(os.path.dirname, dataset.files))
        of_labels += file.form(split).label_folders(all_images(dataset))
    for folder in filter(Path.is_dir, of_labels):
        paths += sorted(entry.path for entry in os.scandir(folder))
    names = [dataset.names for dataset in datasets.values()]
    return state_of(
        [*paths, *folders, *of_labels],
        file.source,
        file.format,
        file.names,
        file.keep_difficult,
        names,
        image_size,
    )
