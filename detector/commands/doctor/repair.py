"""A repaired copy of a dataset: YOLO text if it was, else COCO json; the original is only read."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from boltbox.detector.commands.doctor.finding import Diagnosis
from boltbox.detector.commands.doctor.images import DAMAGED
from boltbox.detector.commands.doctor.labels import PAST_FRAME, repeated
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import area_xyxy, clip_xyxy, xyxy_to_cxcywhn
from boltbox.detector.system.addresses import read_bytes
from boltbox.detector.system.atomic_file import make_folder, sync_files, write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import common_folder, inside

LabelledImages = Sequence[tuple[str, Labels]]  # paths or names, and labels

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
    splits = {}
    for split, kept in _kept_images(usable, diagnosis, repairs).items():
        images = _repaired(usable[split], kept, repairs)
        if images:
            splits[split] = images
        else:
            repairs.append(f"left out the split {split}: it has no image that can be used")
    write_copy(file, splits, folder, "repairs.txt", repairs)
    return repairs


def check_folder(root: Path, folder: Path) -> None:
    """Refuse a folder for the repaired copy that is not empty, or lies within the dataset.

    Args:
        root: of the dataset.
        folder: for the copy.

    Raises:
        InputError: the folder is refused.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: the repaired copy needs a new or an empty folder")
    if folder.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"{folder}: this folder lies within the dataset, in {root}; give one outside, the"
            " original stays as it is"
        )


def write_copy(
    file: DatasetFile,
    splits: Mapping[str, LabelledImages],
    folder: Path,
    listing: str,
    changes: list[str],
) -> None:
    """Write images, labels and the list of changes, then `data.yaml`: a folder without it is not
    complete.

    Args:
        file: the dataset.
        splits: paths and labels of the images of each split.
        folder: for the copy.
        listing: name of the list.
        changes: its lines; gets one more per image with another name.
    """
    copies = {}
    for split, images in splits.items():
        copies[split] = _copy_images(images, folder / "images" / split, changes)
    write_atomically(folder / listing, "".join(f"{line}\n" for line in changes))
    write_dataset(folder, copies, file.names, file.format)


def write_dataset(
    folder: Path,
    splits: Mapping[str, LabelledImages],
    classes: Sequence[str],
    format: str = "coco",
) -> Path:
    """Write labels, then data.yaml.

    Args:
        folder: of the dataset.
        splits: of each split, the names of the images in the folder images/SPLIT, or absolute paths
            of others, and labels.
        classes: class names.
        format: of the labels; YOLO text if it is yolo, else COCO.

    Returns:
        The data.yaml.
    """
    content: dict[str, Any] = {"path": "."}
    for split, images in splits.items():
        if format == "yolo":
            write_yolo(folder / "labels" / split, images)
            content[split] = f"images/{split}"
        else:
            content[split] = f"annotations/{split}.json"
            write_coco(folder / content[split], images, classes)
    content["names"] = list(classes)
    sync_files(list(folder.glob("images/*/*")) + list(folder.glob("labels/*/*")))
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(folder / "data.yaml", text)
    return folder / "data.yaml"


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
        for path in datasets[split].files:
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


def _repaired(dataset: DetectionDataset, kept: set[str], repairs: list[str]) -> LabelledImages:
    """Those of the images that can be used, with the valid part of their labels; adds to
    `repairs`."""
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
            continue
        past = np.abs(boxes - labels.boxes).max(1, initial=0) > PAST_FRAME
        again = repeated(labels.classes, labels.crowd, boxes)
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


def _copy_images(images: LabelledImages, folder: Path, repairs: list[str]) -> LabelledImages:
    """Copy images byte for byte. Their names in the folder, with which they are returned, tell the
    original folder and have unique stems, as labels go by them."""
    paths = sorted(path for path, _ in images)
    common = common_folder(paths)
    make_folder(folder)
    names: dict[str, str] = {}
    stems = set()
    for path in paths:
        stem, suffix = os.path.splitext(inside(path, common).replace(os.sep, "_"))
        while stem in stems:
            stem += "_2"
        stems.add(stem)
        names[path] = stem + suffix
        if names[path] != os.path.basename(path):
            repairs.append(f"{path}: named {names[path]}")
        (folder / names[path]).write_bytes(read_bytes(path))
    return [(names[path], labels) for path, labels in images]


def write_yolo(folder: Path, images: LabelledImages) -> None:
    """Write a text file per image, with polygons where there are some.

    Args:
        folder: for the files.
        images: names and labels.
    """
    for name, labels in images:
        size = (labels.width, labels.height)
        lines = []
        for c, box, polygon in zip(labels.classes, labels.boxes, labels.polygons, strict=True):
            numbers = polygon[0] / size if polygon else xyxy_to_cxcywhn(box.astype(float), *size)
            words = [f"{number:.6f}" for number in numbers.ravel()]
            lines.append(f"{c} {' '.join(words)}\n")
        write_atomically((folder / name).with_suffix(".txt"), "".join(lines), sync=False)


def write_coco(file: Path, images: LabelledImages, classes: Sequence[str]) -> None:
    """Write one COCO json file.

    Args:
        file: the file.
        images: their names in the file, and labels.
        classes: class names.
    """
    entries: list[dict] = []
    annotations: list[dict] = []
    for number, (name, labels) in enumerate(images, 1):
        size = {"height": labels.height, "width": labels.width}
        entries.append({"id": number, "file_name": name, **size})
        boxes = labels.boxes.astype(float)
        areas = np.minimum(labels.area, area_xyxy(boxes))  # the box may have been clipped
        for k, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": int(labels.classes[k]) + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": float(areas[k]),
                    "iscrowd": int(labels.crowd[k]),
                    "segmentation": [part.ravel().tolist() for part in labels.polygons[k]],
                }
            )
    categories = [{"id": k, "name": each} for k, each in enumerate(classes, 1)]
    content = {"images": entries, "annotations": annotations, "categories": categories}
    write_atomically(file, json.dumps(content))
