"""A repaired copy of a dataset: YOLO text if it was, else COCO json; the original is only read."""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from boltbox.detector.commands.doctor.copied_labels import CopiedImage, write_coco, write_yolo
from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.images import DAMAGED
from boltbox.detector.commands.doctor.labels import PAST_FRAME
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.atomic_file import make_folder, sync_files, write_atomically
from boltbox.detector.system.errors import InputError

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
    for finding in diagnosis.findings:
        if finding.kind in ("unusable_split", "orphan_label_file"):
            repairs.append(f"left out {finding}")
    content: dict[str, Any] = {"path": "."}
    for split, kept in _kept_images(datasets, diagnosis, repairs).items():
        images = _repaired(datasets[split], kept, repairs)
        if not images:
            repairs.append(f"left out the split {split}: it has no image that can be used")
            continue
        _copy_images(images, folder / "images" / split, repairs)
        if file.format == "yolo":
            content[split] = write_yolo(folder, split, images)
        else:
            content[split] = write_coco(folder, split, images, file.names)
    content["names"] = file.names
    repairs = list(dict.fromkeys(repairs))
    lines = "".join(f"{line}\n" for line in repairs)
    write_atomically(folder / "repairs.txt", lines.encode(errors="replace"))
    sync_files([path for path in folder.rglob("*") if path.is_file()])
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(folder / "data.yaml", text)
    return repairs


def check_folder(file: DatasetFile, datasets: Mapping[str, DetectionDataset], folder: Path) -> None:
    """Refuse a folder for the repaired copy that is not empty, or lies within the dataset.

    Args:
        file: the dataset.
        datasets: its splits.
        folder: for the copy.

    Raises:
        InputError: the folder is refused.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: the repaired copy needs a new or an empty folder")
    target = Path(os.path.realpath(folder))
    parts = {file.root}
    for dataset in datasets.values():
        parts.update(Path(image).parent for image in dataset.files)
    for part in parts:
        if target.is_relative_to(os.path.realpath(part)):
            raise InputError(
                f"{folder}: this folder lies within the dataset, in {part}; give one outside, the"
                " original stays as it is"
            )


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
            digest = sha256(Path(path).read_bytes()).hexdigest()
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


def _copy_images(images: Sequence[CopiedImage], folder: Path, repairs: list[str]) -> None:
    """Copy images byte for byte, and set their `name`: the path below their common folder, but with
    a unique stem, as labels go by it, and in UTF-8."""
    paths = sorted({image.path for image in images})
    common = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    names: dict[str, str] = {}
    stems = set()
    for path in paths:
        # readers look for labels beside the last folder `images`, which has to be the copy's
        parts = [part for part in Path(os.path.relpath(path, common)).parts if part != "images"]
        original_stem, suffix = os.path.splitext(os.path.join(*parts))
        stem = re.sub("[\udc80-\udcff]", "_", original_stem)  # bytes that are not UTF-8
        while stem in stems:
            stem += "_2"
        stems.add(stem)
        names[path] = stem + suffix
        if stem != original_stem:
            repairs.append(f"{path}: named {names[path]}")
        target = folder / names[path]
        make_folder(target.parent)
        shutil.copyfile(path, target)
    for image in images:
        image.name = names[image.path]


def _repaired(dataset: DetectionDataset, kept: set[str], repairs: list[str]) -> list[CopiedImage]:
    """The images with these paths, with the valid part of their labels; adds to `repairs`."""
    for fault in dataset.faults:
        if fault.where:
            repairs.append(f"{fault.file}, {fault.where}: dropped ({fault.problem})")
    seen: dict[str, set] = defaultdict(set)  # objects by image, which may be listed twice
    images = []
    for path, source, labels in zip(dataset.files, dataset.sources, dataset.labels, strict=True):
        if path not in kept:
            continue
        boxes = clip_xyxy(labels.boxes, labels.width, labels.height)
        outside = (boxes[:, 2:] <= boxes[:, :2]).any(1)
        if len(boxes) and outside.all():
            repairs.append(f"left out {path}: none of its boxes lies in the image")
            continue
        past = np.abs(boxes - labels.boxes).max(1, initial=0) > PAST_FRAME
        rows = np.column_stack((labels.classes, labels.crowd, boxes)).tolist()
        stay = ~outside
        for k, row in enumerate(map(tuple, rows)):
            place = f"{source.file}, {source.places[k]}"
            if outside[k]:
                repairs.append(f"{place}: dropped (the box lies outside the image)")
            elif row in seen[path]:
                repairs.append(f"{place}: dropped (duplicate of an earlier object)")
                stay[k] = False
            elif past[k]:
                repairs.append(f"{place}: box clipped to the image")
            seen[path].add(row)
        valid = replace(labels, boxes=boxes).keep(stay)
        images.append(CopiedImage(path, valid, bool(source.file)))
    return images
