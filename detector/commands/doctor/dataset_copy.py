"""A copy of a dataset with other labels: YOLO text if it was, else COCO json; the original is only
read."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import area_xyxy, xyxy_to_cxcywhn
from boltbox.detector.system.addresses import read_bytes
from boltbox.detector.system.atomic_file import make_folder, sync_files, write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import common_folder, inside


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


def write_split(
    file: DatasetFile,
    split: str,
    images: Sequence[tuple[str, Labels]],
    folder: Path,
    changes: list[str],
) -> str:
    """Write the images and the labels of a split.

    Args:
        file: the dataset.
        split: train, val or test.
        images: paths and labels.
        folder: of the copy.
        changes: gets a line per image with another name.

    Returns:
        The place of the split, for `finish`.
    """
    names = _copy_images({path for path, _ in images}, folder / "images" / split, changes)
    if file.format == "yolo":
        _write_yolo(folder / "labels" / split, images, names)
        return f"images/{split}"
    place = f"annotations/{split}.json"
    write_coco(folder / place, images, names, file.names)
    return place


def finish(
    file: DatasetFile, places: Mapping[str, str], folder: Path, listing: str, changes: Sequence[str]
) -> None:
    """Write the list of changes, then `data.yaml`: a folder without it is not complete.

    Args:
        file: the dataset.
        places: of the splits, from `write_split`.
        folder: of the copy.
        listing: name of the list.
        changes: its lines.
    """
    lines = "".join(f"{line}\n" for line in changes)
    write_atomically(folder / listing, lines.encode(errors="replace"))
    sync_files([path for path in folder.rglob("*") if path.is_file()])
    content = {"path": ".", **places, "names": file.names}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomically(folder / "data.yaml", text)


def _copy_images(paths: set[str], folder: Path, repairs: list[str]) -> dict[str, str]:
    """Copy images byte for byte. Their names in the folder, by path, tell the original folder and
    have unique stems, as labels go by them."""
    common = common_folder(list(paths))
    make_folder(folder)
    names: dict[str, str] = {}
    stems = set()
    for path in sorted(paths):
        stem, suffix = os.path.splitext(inside(path, common).replace(os.sep, "_"))
        while stem in stems:
            stem += "_2"
        stems.add(stem)
        names[path] = stem + suffix
        if names[path] != os.path.basename(path):
            repairs.append(f"{path}: named {names[path]}")
        (folder / names[path]).write_bytes(read_bytes(path))
    return names


def _write_yolo(
    folder: Path, images: Sequence[tuple[str, Labels]], names: Mapping[str, str]
) -> None:
    """A text file per image, with polygons where there are some; names: of the images, by path."""
    for path, labels in images:
        size = (labels.width, labels.height)
        lines = []
        for c, box, polygon in zip(labels.classes, labels.boxes, labels.polygons, strict=True):
            numbers = polygon[0] / size if polygon else xyxy_to_cxcywhn(box.astype(float), *size)
            words = [f"{number:.6f}" for number in np.ravel(numbers)]
            lines.append(f"{c} {' '.join(words)}\n")
        target = (folder / names[path]).with_suffix(".txt")
        write_atomically(target, "".join(lines), sync=False)


def write_coco(
    file: Path,
    images: Sequence[tuple[str, Labels]],
    names: Mapping[str, str],
    classes: Sequence[str],
) -> None:
    """Write one COCO json file.

    Args:
        file: the file.
        images: paths and labels.
        names: of the images in the file, by path.
        classes: class names.
    """
    entries: list[dict] = []
    annotations: list[dict] = []
    for number, (path, labels) in enumerate(images, 1):
        size = {"height": labels.height, "width": labels.width}
        entries.append({"id": number, "file_name": names[path], **size})
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
    categories = [{"id": k, "name": name} for k, name in enumerate(classes, 1)]
    content = {"images": entries, "annotations": annotations, "categories": categories}
    write_atomically(file, json.dumps(content))
