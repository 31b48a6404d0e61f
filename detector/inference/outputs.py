"""What is written about the detections of an image: text, JSON and CSV rows, crops."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from boltbox.detector.data.sample import Picture
from boltbox.detector.model.boxes import clip_xyxy, xyxy_to_cxcywhn
from boltbox.detector.system.file_names import short_name

CSV_COLUMNS = ("image", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2")
# COCO's 80 classes have the ids 1 to 90; these ten stand for nothing in its boxes.
COCO_CLASSES, COCO_UNUSED = 80, {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}


def label_lines(rows: np.ndarray, width: int, height: int, confidences: bool = True) -> str:
    """(n, 6) x1, y1, x2, y2 in pixels, score, class -> the text of a label file: class cx cy w h
    [score], as fractions."""
    boxes = xyxy_to_cxcywhn(rows[:, :4], width, height)
    table = np.column_stack((rows[:, 5], boxes, rows[:, 4]))[:, : 6 if confidences else 5]
    line = "%d" + " %.6g" * (table.shape[1] - 1) + "\n"
    return "".join(line % tuple(row) for row in table.tolist())


def category_ids(names: Sequence[str]) -> list[int]:
    """COCO's category id of each class: its own ids for its own 80 classes, else the class
    numbers."""
    if len(names) == COCO_CLASSES and (names[0], names[-1]) == ("person", "toothbrush"):
        return [i for i in range(1, 91) if i not in COCO_UNUSED]
    return list(range(len(names)))


def image_id(picture: Picture) -> int | str:
    """The file's name as COCO's image id: a number where it is one (000000000139 is 139); of a
    video frame `NAME_000012`."""
    name = PurePath(picture.path).stem if picture.frame is None else frame_name(picture)
    return int(name) if re.fullmatch("[0-9]+", name) else name


def frame_name(picture: Picture) -> str:
    """What the files of a picture are called: its name, with the number of the frame if it is
    one."""
    return picture.name if picture.frame is None else f"{picture.name}_{picture.frame:06d}"


def coco_results(picture: Picture, rows: np.ndarray, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Entries of COCO's results format; bbox is x, y, width, height in pixels."""
    image = image_id(picture)
    return [
        {
            "image_id": image,
            "category_id": ids[int(number)],
            "bbox": [round(v, 3) for v in (x1, y1, x2 - x1, y2 - y1)],
            "score": round(score, 5),
        }
        for x1, y1, x2, y2, score, number in rows.tolist()
    ]


def csv_rows(picture: Picture, rows: np.ndarray, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Values for CSV_COLUMNS, a row a detection; frame is empty for an image."""
    frame = "" if picture.frame is None else picture.frame
    return [
        (picture.path, frame, int(c), names[int(c)], f"{score:.5f}", *(f"{v:.2f}" for v in box))
        for *box, score, c in rows.tolist()
    ]


def crops(
    image: np.ndarray, rows: np.ndarray, names: Sequence[str]
) -> Iterator[tuple[str, int, np.ndarray]]:
    """(folder name of the class, number of the detection, pixels (h, w, 3)) of each; sides are
    rounded outwards."""
    height, width = image.shape[:2]
    for number, row in enumerate(rows):
        x1, y1, x2, y2 = clip_xyxy(row[:4], width, height).tolist()
        left, top = min(math.floor(x1), width - 1), min(math.floor(y1), height - 1)
        right, bottom = max(math.ceil(x2), left + 1), max(math.ceil(y2), top + 1)
        yield folder_name(names[int(row[5])]), number, image[top:bottom, left:right]


def folder_name(name: str) -> str:
    """A class name as that of a folder.

    >>> folder_name("traffic light"), folder_name("../a/b"), folder_name("..")
    ('traffic light', '.._a_b', '__')
    """
    safe = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", name).strip()
    return short_name(safe if safe.strip(".") else "_" * max(len(safe), 1))
