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
    """An image of the copy. path: of the original · labels: sound ones, boxes within the image ·
    labelled: it has a label file · name: its path below the folder of the split's images."""

    path: str
    labels: Labels
    labelled: bool
    name: str = ""


def write_yolo(folder: Path, split: str, images: Sequence[CopiedImage]) -> str:
    """A text file an image, a polygon for an object that has one; returns the split's value in the
    data.yaml."""
    for image in images:
        labels, lines = image.labels, []
        for c, box, parts in zip(labels.classes, labels.boxes, labels.polygons, strict=True):
            size = labels.width, labels.height
            place = parts[0] / size if parts else xyxy_to_cxcywhn(box.astype(float), *size)
            lines.append(" ".join((f"{c}", *(f"{v:.6f}" for v in np.ravel(place)))) + "\n")
        target = (folder / "labels" / split / image.name).with_suffix(".txt")
        if image.labelled:
            write_atomically(target, "".join(lines), sync=False)
    return f"images/{split}"


def write_coco(folder: Path, split: str, images: Sequence[CopiedImage], names: list[str]) -> str:
    """One json file; an image that is listed twice is written once. Returns the split's value in
    the data.yaml."""
    entries: dict[str, dict] = {}
    annotations: list[dict] = []
    for number, image in enumerate(images, 1):
        labels = image.labels
        size = {"height": labels.height, "width": labels.width}
        entry = entries.setdefault(image.name, {"id": number, "file_name": image.name, **size})
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
    content = {
        "images": list(entries.values()),
        "annotations": annotations,
        "categories": [{"id": k, "name": name} for k, name in enumerate(names, 1)],
    }
    write_atomically(folder / "annotations" / f"{split}.json", json.dumps(content))
    return f"annotations/{split}.json"
