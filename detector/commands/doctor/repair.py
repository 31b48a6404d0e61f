"""A repaired copy of a data set: YOLO text if it was, else COCO json; the original is only read."""

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
from boltbox.detector.commands.doctor.image_file import DAMAGED
from boltbox.detector.commands.doctor.labels import PAST_FRAME
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.atomic_file import make_folder, sync_files, write_atomically
from boltbox.detector.system.errors import InputError

# of copies across splits, the one that is evaluated on stays
_FIRST_CHOICE = ("test", "val", "train")


def repair(
    file: DatasetFile, datasets: Mapping[str, DetectionDataset], diagnosis: Diagnosis, folder: Path
) -> list[str]:
    """Write what is sound of a data set into an empty or new folder.

    Left out are images that cannot be used, copies of others, images without any of their objects
    left, objects that training would drop, and duplicates. Boxes are clipped to the image; images
    are copied byte for byte, names that clash changed, labels written as training reads them. What
    is in no split is not copied. A split of which each image is in another one too stays so.
    `data.yaml` is written last: a folder without it is not complete.

    Args:
        file: the data set. datasets: its splits, from `open_splits`. diagnosis: of these.
        folder: gets data.yaml, repairs.txt, the images, and their labels.

    Returns:
        A line for each repair, as in repairs.txt.
    """
    left_out = ("unusable_split", "orphan_label_file")
    done = [f"left out {f}" for f in diagnosis.findings if f.kind in left_out]
    places: dict[str, str] = {}
    for split, kept in _kept(datasets, diagnosis, done).items():
        images = _repaired(datasets[split], kept, done)
        if not images:
            done.append(f"left out the split {split}: it has no image that can be used")
            continue
        _copy_images(images, folder / "images" / split, done)
        if file.format == "yolo":
            places[split] = write_yolo(folder, split, images)
        else:
            places[split] = write_coco(folder, split, images, file.names)
    content: dict[str, Any] = {"path": ".", **places, "names": file.names}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    done = list(dict.fromkeys(done))
    listed = "".join(f"{line}\n" for line in done).encode(errors="replace")
    write_atomically(folder / "repairs.txt", listed)
    sync_files([path for path in folder.rglob("*") if path.is_file()])
    write_atomically(folder / "data.yaml", text)
    return done


def check_folder(file: DatasetFile, datasets: Mapping[str, DetectionDataset], folder: Path) -> None:
    """Raises InputError unless the folder is empty or new, and no part of the data set."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: the repaired copy needs a new or an empty folder")
    target = Path(os.path.realpath(folder))
    parts = {Path(image).parent for dataset in datasets.values() for image in dataset.files}
    for part in {file.root, *parts}:
        if target.is_relative_to(os.path.realpath(part)):
            raise InputError(
                f"{folder}: this folder lies within the data set, in {part}; give one outside, the"
                " original stays as it is"
            )


def _kept(
    datasets: Mapping[str, DetectionDataset], diagnosis: Diagnosis, done: list[str]
) -> dict[str, set[str]]:
    """Image paths by split without those that cannot be used and without copies; what is left out,
    and why, is added to `done`."""
    lost = {f.file: f.problem for f in diagnosis.findings if f.kind == DAMAGED}
    images: dict[str, set[str]] = {}
    taken: dict[str, str] = {}  # content -> path
    for split in sorted(datasets, key=_FIRST_CHOICE.index):
        done += [f"left out {fault}" for fault in datasets[split].faults if not fault.where]
        images[split], copies = set(), {}
        for path in dict.fromkeys(datasets[split].files):
            if path in lost:
                done.append(f"left out {path}: {lost[path]}")
                continue
            digest = sha256(Path(path).read_bytes()).hexdigest()
            if first := taken.get(digest):
                copies[path] = f"left out {path} of {split}: the same image as {first}, which stays"
            else:
                taken[digest] = path
                images[split].add(path)
        if copies and not images[split]:
            images[split] = set(copies)
            done.append(f"kept the images of {split}, although each is in another split too")
        else:
            done += copies.values()
    return images


def _copy_images(images: Sequence[CopiedImage], folder: Path, done: list[str]) -> None:
    """Copy images byte for byte. Each gets its `name`, a path below `folder`: as it is below the
    folder that all have in common, but, as labels go by the name without its suffix, with a stem of
    its own, in UTF-8."""
    paths = sorted({image.path for image in images})
    common = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    names: dict[str, str] = {}
    stems = set()
    for path in paths:
        # labels are looked for beside the last folder `images`, which has to be the copy's own
        parts = [part for part in Path(os.path.relpath(path, common)).parts if part != "images"]
        given, suffix = os.path.splitext(os.path.join(*parts))
        stem = re.sub("[\udc80-\udcff]", "_", given)  # bytes that are not UTF-8
        while stem in stems:
            stem += "_2"
        stems.add(stem)
        names[path] = stem + suffix
        if stem != given:
            done.append(f"{path}: named {names[path]}")
        target = folder / names[path]
        make_folder(target.parent)
        shutil.copyfile(path, target)
    for image in images:
        image.name = names[image.path]


def _repaired(dataset: DetectionDataset, kept: set[str], done: list[str]) -> list[CopiedImage]:
    """The images of a split that stay, without a name, with what is sound of their labels; what is
    repaired is added to `done`. kept: paths of images.
    """
    done += [f"{f.file}, {f.where}: dropped ({f.problem})" for f in dataset.faults if f.where]
    seen: dict[str, set] = defaultdict(set)  # objects by image, which may be listed twice
    images = []
    for path, source, labels in zip(dataset.files, dataset.sources, dataset.labels, strict=True):
        if path not in kept:
            continue
        boxes = clip_xyxy(labels.boxes, labels.width, labels.height)
        outside = (boxes[:, 2:] <= boxes[:, :2]).any(1)
        if len(boxes) and outside.all():
            done.append(f"left out {path}: none of its boxes lies in the image")
            continue
        past = np.abs(boxes - labels.boxes).max(1, initial=0) > PAST_FRAME
        rows = np.column_stack((labels.classes, labels.crowd, boxes)).tolist()
        stay = ~outside
        for k, item in enumerate(map(tuple, rows)):
            repair = "box clipped to the image" if past[k] else ""
            if outside[k]:
                repair = "dropped (the box lies outside the image)"
            elif item in seen[path]:
                repair, stay[k] = "dropped (duplicate of an earlier object)", False
            seen[path].add(item)
            done += [f"{source.file}, {source.places[k]}: {repair}"] if repair else []
        sound = replace(labels, boxes=boxes).keep(stay)
        images.append(CopiedImage(path, sound, bool(source.file)))
    return images
