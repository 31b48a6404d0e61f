"""The labels of a repaired copy, as YOLO text or COCO json."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import area_xyxy, xyxy_to_cxcywhn
from boltbox.detector.system.atomic_file import write_atomically


@dataclass
class CopiedImage:
    """An image of the copy.

    Attributes:
        path: of the original.
        labels: the valid ones, with boxes within the image.
        is_labelled: it has a label file.
        name: its path below the folder of the split's images.
    """

    path: str
    labels: Labels
    is_labelled: bool
    name: str = ""


def write_yolo(folder: Path, split: str, images: Sequence[CopiedImage]) -> str:
    """Write one text file per image; objects with a polygon are written as a polygon.

    Args:
        folder: of the copy.
        split: train, val or test.
        images: of the split.

    Returns:
        The split's value in data.yaml.
    """
    for image in images:
        if not image.is_labelled:
            continue
        labels = image.labels
        size = (labels.width, labels.height)
        lines = []
        for c, box, polygon in zip(labels.classes, labels.boxes, labels.polygons, strict=True):
            numbers = polygon[0] / size if polygon else xyxy_to_cxcywhn(box.astype(float), *size)
            words = [f"{number:.6f}" for number in np.ravel(numbers)]
            lines.append(f"{c} {' '.join(words)}\n")
        target = (folder / "labels" / split / image.name).with_suffix(".txt")
        write_atomically(target, "".join(lines), sync=False)
    return f"images/{split}"


def write_coco(folder: Path, split: str, images: Sequence[CopiedImage], names: list[str]) -> str:
    """Write one json file; an image that is listed twice is written once.

    Args:
        folder: of the copy.
        split: train, val or test.
        images: of the split.
        names: of the classes.

    Returns:
        The split's value in data.yaml.
    """
    entries: dict[str, dict] = {}
    annotations: list[dict] = []
    for number, image in enumerate(images, 1):
        labels = image.labels
        entry = {
            "id": number,
            "file_name": image.name,
            "height": labels.height,
            "width": labels.width,
        }
        entry = entries.setdefault(image.name, entry)
        boxes = labels.boxes.astype(float)
        areas = np.minimum(labels.area, area_xyxy(boxes))  # the box may have been clipped
        for k, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": entry["id"],
                    "category_id": int(labels.classes[k]) + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": float(areas[k]),
                    "iscrowd": int(labels.crowd[k]),
                    "segmentation": [part.ravel().tolist() for part in labels.polygons[k]],
                }
            )
    categories = [{"id": k, "name": name} for k, name in enumerate(names, 1)]
    content = {
        "images": list(entries.values()),
        "annotations": annotations,
        "categories": categories,
    }
    write_atomically(folder / "annotations" / f"{split}.json", json.dumps(content))
    return f"annotations/{split}.json"
