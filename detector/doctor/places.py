"""Where an object is written: from an object of a data set to a line of its label file, and back."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from detector.boxes import cxcywhn_to_xyxy
from detector.data.datasets import DetectionDataset
from detector.data.yolo_txt import label_path


def label_files(image: str) -> list[Path]:
    """Where the labels of an image may be: YOLO's text file; VOC's xml file, if the image is in a folder JPEGImages."""
    path = Path(image)
    if "JPEGImages" not in path.parts:
        return [label_path(path)]
    last = len(path.parts) - 1 - path.parts[::-1].index("JPEGImages")
    return [label_path(path), Path(*path.parts[:last], "Annotations", *path.parts[last + 1 :]).with_suffix(".xml")]


def written_boxes(file: Path, height: int, width: int) -> dict[str, np.ndarray]:
    """The boxes of a YOLO or VOC label file as they are written, sound or not, by place ("line 3", "object 2").

    Args:
        file: a .txt or .xml file; one that is not there or cannot be read has no boxes.
        height, width: of the image, in pixels.

    Returns:
        (4,) float32 xyxy in pixels of the image for each place that holds four finite numbers, or points of a polygon.
    """
    try:
        text = file.read_text(errors="replace")
        return _voc_boxes(text) if file.suffix == ".xml" else _yolo_boxes(text, height, width)
    except (OSError, ElementTree.ParseError):
        return {}


def place_of(dataset: DetectionDataset, image: int, number: int) -> tuple[str, str]:
    """File and place of an object: a line of the text file, an object of the xml file; else (COCO) the image and "object N".

    Args:
        dataset: the split. image: index in it. number: of the object in the image's Labels, from 0.
    """
    labels, path = dataset.labels[image], dataset.files[image]
    for file in label_files(path):
        for place, box in written_boxes(file, labels.height, labels.width).items():
            if np.allclose(box, labels.boxes[number], rtol=1e-5, atol=1e-3):
                return str(file), place
    return path, f"object {number + 1}"


def _yolo_boxes(text: str, height: int, width: int) -> dict[str, np.ndarray]:
    boxes = {}
    for number, line in enumerate(text.splitlines(), 1):
        values = _floats(line.split()[1:])
        if len(values) == 4:
            boxes[f"line {number}"] = cxcywhn_to_xyxy(values[None], width, height)[0]
        elif len(values) >= 6 and len(values) % 2 == 0:
            points = values.reshape(-1, 2) * np.array((width, height), np.float32)
            boxes[f"line {number}"] = np.concatenate((points.min(0), points.max(0)))
    return boxes


def _voc_boxes(text: str) -> dict[str, np.ndarray]:
    corners = ("xmin", "ymin", "xmax", "ymax")
    objects = ElementTree.fromstring(text).findall("object")
    written = {
        f"object {k}": _floats([item.findtext(f"bndbox/{c}", "nan") for c in corners]) for k, item in enumerate(objects, 1)
    }
    return {place: box for place, box in written.items() if len(box) == 4}


def _floats(fields: Sequence[str]) -> np.ndarray:
    """(n,) float32; empty if one of them is not a finite number."""
    try:
        with np.errstate(over="ignore"):
            values = np.array(fields, np.float32)
    except ValueError:
        return np.zeros(0, np.float32)
    return values if np.isfinite(values).all() else values[:0]
