"""The repairs that doctor makes in a copy of a dataset; the original is only read."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from boltbox.detector.commands.doctor.dataset_copy import finish, write_split
from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.images import DAMAGED
from boltbox.detector.commands.doctor.labels import PAST_FRAME
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.addresses import read_bytes

# of copies across splits, the evaluated one stays
_FIRST_CHOICE = ("test", "val", "train")


def repair(
    file: DatasetFile, datasets: Mapping[str, DetectionDataset], diagnosis: Diagnosis, folder: Path
) -> list[str]:
    """Write the valid part of a dataset into a folder.

    Left out are images that cannot be used, copies of others, images of which no object is left,
    objects that training would drop, and duplicates. Boxes are clipped to the image. Images are
    copied byte for byte, labels written as training reads them. A split of which each image is in
    another one too stays so. `data.yaml` is written last: a folder without it is not complete.

    Args:
        file: the dataset.
        datasets: its splits, from `open_splits`.
        diagnosis: of these.
        folder: empty or new; gets data.yaml, repairs.txt, images and labels.

    Returns:
        One line per repair, as in repairs.txt.
    """
    repairs = []
    usable = dict(datasets)
    for finding in diagnosis.findings:
        if finding.kind in ("unusable_split", "orphan_labels") and not finding.where:
            repairs.append(f"left out {finding}")
        if finding.kind == "unusable_split":
            usable.pop(finding.split, None)
    places = {}
    for split, kept in _kept_images(usable, diagnosis, repairs).items():
        images = _repaired(usable[split], kept, repairs)
        if not images:
            repairs.append(f"left out the split {split}: it has no image that can be used")
            continue
        places[split] = write_split(file, split, images, folder, repairs)
    finish(file, places, folder, "repairs.txt", repairs)
    return repairs


def _kept_images(
    datasets: Mapping[str, DetectionDataset], diagnosis: Diagnosis, repairs: list[str]
) -> dict[str, set[str]]:
    """Image paths by split without those that cannot be used and without copies; adds to
    `repairs`."""
    damaged = {f.file: f.problem for f in diagnosis.findings if f.kind == DAMAGED}
    kept: dict[str, set[str]] = {}
    path_of: dict[str, str] = {}  # by content
    for split in sorted(datasets, key=_FIRST_CHOICE.index):
        repairs += [f"left out {fault}" for fault in datasets[split].faults if not fault.where]
        kept[split] = set()
        copies = {}
        for path in dict.fromkeys(datasets[split].files):
            if path in damaged:
                repairs.append(f"left out {path}: {damaged[path]}")
                continue
            digest = sha256(read_bytes(path)).hexdigest()
            if digest in path_of:
                first = path_of[digest]
                copies[path] = f"left out {path} of {split}: the same image as {first}, which stays"
            else:
                path_of[digest] = path
                kept[split].add(path)
        if copies and not kept[split]:
            kept[split] = set(copies)
            repairs.append(f"kept the images of {split}, although each is in another split too")
        else:
            repairs += copies.values()
    return kept


def _repaired(
    dataset: DetectionDataset, kept: set[str], repairs: list[str]
) -> list[tuple[str, Labels]]:
    """Those of the images that can be used, with the valid part of their labels; adds to `repairs`,
    and takes the others out of `kept`."""
    for fault in dataset.faults:
        if fault.where:
            repairs.append(f"{fault.file}, {fault.where}: dropped ({fault.problem})")
    images = []
    for i, (path, labels) in enumerate(zip(dataset.files, dataset.labels, strict=True)):
        if path not in kept:
            continue
        boxes = clip_xyxy(labels.boxes, labels.width, labels.height)
        outside = (boxes[:, 2:] <= boxes[:, :2]).any(1)
        if len(boxes) and outside.all():
            repairs.append(f"left out {path}: none of its boxes lies in the image")
            kept.remove(path)
            continue
        past = np.abs(boxes - labels.boxes).max(1, initial=0) > PAST_FRAME
        rows = np.column_stack((labels.classes, labels.crowd, boxes))
        _, first = np.unique(rows, axis=0, return_index=True)
        again = ~np.isin(np.arange(len(rows)), first)
        for k in np.flatnonzero(outside | again | past).tolist():
            place = f"{dataset.label_files[i]}, {dataset.places[dataset.labels.starts[i] + k]}"
            if outside[k]:
                repairs.append(f"{place}: dropped (the box lies outside the image)")
            elif again[k]:
                repairs.append(f"{place}: dropped (duplicate of an earlier object)")
            else:
                repairs.append(f"{place}: box clipped to the image")
        images.append((path, replace(labels, boxes=boxes).keep(~outside & ~again)))
    return images
