"""Where an object is written: from an object of a data set to a line of its label file, and back."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from detector.data.datasets import DetectionDataset
from detector.data.formats.voc_xml import annotation_path
from detector.data.formats.yolo_txt import label_path
from detector.model.boxes import cxcywhn_to_xyxy
from detector.system.text_file import is_file


def label_files(image: str) -> list[Path]:
    """Where the labels of an image may be: YOLO's text file; VOC's xml file, if that is not there."""
    text = label_path(image)
    return [text] if is_file(text) else [text, annotation_path(image)]


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


class Places:
    """Where the objects of a split are written. The label files of one image are kept, so that many objects of an image, asked
    for one after the other, cost one look at them.

    Args:
        dataset: the split.
    """

    def __init__(self, dataset: DetectionDataset) -> None:
        self._dataset = dataset
        self._image = -1
        self._labels = np.zeros((0, 4), np.float32)
        self._written: list[tuple[Path, list[str], np.ndarray]] = []  # label file, places, (n, 4) boxes

    def of(self, image: int, number: int) -> tuple[str, str]:
        """File and place of an object: a line of the text file, an object of the xml file; else (COCO) image and "object N".

        Args:
            image: index in the split. number: of the object in the image's Labels, from 0.
        """
        if image != self._image:
            self._read(image)
        for file, places, boxes in self._written:
            same = np.isclose(boxes, self._labels[number], rtol=1e-5, atol=1e-3).all(1)
            if same.any():
                return str(file), places[int(same.argmax())]
        return self._dataset.files[image], f"object {number + 1}"

    def _read(self, image: int) -> None:
        labels = self._dataset.labels[image]
        self._image, self._labels, self._written = image, labels.boxes, []
        for file in label_files(self._dataset.files[image]):
            written = written_boxes(file, labels.height, labels.width)
            self._written.append((file, list(written), np.array(list(written.values()), np.float32).reshape(-1, 4)))


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
