"""YOLO text labels: for `.../images/a/b.jpg` the file `.../labels/a/b.txt`, one line per
object: `class cx cy w h`, or `class x y x y ...` for a polygon, as fractions of the image."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from boltbox.detector.data.formats.format import (
    NO_BOX,
    Entry,
    ImageLabels,
    LabelObject,
    PerImageFormat,
    find_tail,
)
from boltbox.detector.data.images import read_lines
from boltbox.detector.model.boxes import cxcywhn_to_xyxy, xyxy_to_cxcywh
from boltbox.detector.system.addresses import join
from boltbox.detector.system.text_file import read_text

# fraction of the image; thinner, and the two edges of a box become one in float32
MIN_SIDE = 1e-6
LEAST_SIDE = float(np.float32(MIN_SIDE))


class YoloText(PerImageFormat):
    """A split is a folder of images, or a text file that lists images ("./" relative to the
    list)."""

    suffix = ".txt"
    folder = "labels"

    def label_path(self, image: str) -> str:
        """The last folder `images` becomes `folder`, the suffix .txt. Beside the image, as LabelImg
        writes it, where there is no such folder."""
        beside = os.path.splitext(image)[0] + ".txt"
        path = re.sub("(?s)^(.*/|)images/", rf"\1{self.folder}/", beside)
        if not self.files.is_folder(os.path.dirname(path)) and self.files.is_file(beside):
            return beside
        return path

    def listed_images(self, source: Path) -> list[Path]:
        root = self.split.root
        images = []
        for line in read_lines(source):
            places = [join(source.parent, line), join(root, line), Path(line)]
            image = next(filter(self.files.state, places), None)
            if image is None:
                image = find_tail(line, source.parent, root)
            images.append(places[0] if image is None else image)
        return images

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        if not self.files.is_file(entry.file):
            return None
        # bytes that are no UTF-8 become no number
        objects = list(parse_yolo(read_text(entry.file, replace=True)))
        fractions = np.array([item.box for item in objects], np.float32).reshape(-1, 4)
        with np.errstate(over="ignore"):
            boxes = cxcywhn_to_xyxy(fractions, width, height).tolist()
        side = np.array((width, height), np.float32)
        for item, box in zip(objects, boxes, strict=True):
            item.box = box
            item.polygons = [part * side for part in item.polygons]
        return ImageLabels(objects)


def parse_yolo(text: str) -> Iterator[LabelObject]:
    """The lines of a label file that are not empty.

    Args:
        text: of the file.

    Returns:
        Objects with box (4,) float32 cx, cy, w, h, of a polygon too, and polygon, one part (k, 2)
        or none, as fractions of the image. An exact duplicate of an earlier line has a problem.
    """
    if boxes := _plain_boxes(text):
        for number, (c, *plain) in enumerate(boxes, 1):
            yield LabelObject(f"line {number}", int(c), plain)
        return
    earlier = set()  # numbers of a line
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            with np.errstate(over="ignore"):
                values = np.array(fields, np.float32)
        except ValueError:
            yield LabelObject(f"line {number}", -1, NO_BOX, "not a number")
            continue
        problem = _problem(float(fields[0]), values)
        polygons = []
        box = values[1:]
        if len(values) > 5 and not problem:
            polygon = box.reshape(-1, 2)
            polygons = [polygon]
            box = xyxy_to_cxcywh(np.concatenate((polygon.min(0), polygon.max(0))))
        key = (values[0], *box.tolist())
        if not problem and min(box[2:]) < MIN_SIDE:
            problem = "zero width or height"
        elif not problem and key in earlier:
            problem = "duplicate of an earlier line"
        if problem:
            yield LabelObject(f"line {number}", -1, box if len(box) == 4 else NO_BOX, problem)
        else:
            earlier.add(key)
            yield LabelObject(f"line {number}", int(values[0]), box, polygons=polygons)


def _plain_boxes(text: str) -> list[list[float]]:
    """Class, cx, cy, w, h of each line, all lines at once, which is faster; nothing if a line is no
    box or has a problem."""
    try:
        lines = [list(map(float, line.split())) for line in text.removesuffix("\n").split("\n")]
    except ValueError:
        return []
    if any(len(fields) != 5 for fields in lines):
        return []
    with np.errstate(over="ignore"):
        boxes = np.array(lines).astype(np.float32).tolist()
    for (number, *_), (_, x, y, width, height) in zip(lines, boxes, strict=True):
        is_in_image = 0 <= x <= 1 and 0 <= y <= 1 and width <= 1 and height <= 1
        if not is_in_image or min(width, height) < LEAST_SIDE:
            return []
        if not (0 <= number < 2**24 and number.is_integer()):
            return []
    return boxes if len(set(map(tuple, boxes))) == len(boxes) else []


def _problem(number: float, values: np.ndarray) -> str:
    """What is wrong with the numbers of one line, or an empty string. number: the class, which
    float32 may have rounded."""
    if len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0):
        return f"wrong column count ({len(values)}; a box has 5, a polygon 7, 9, 11, ...)"
    if not np.isfinite(values).all():
        return "non-finite value"
    if (values < 0).any():
        return "negative value"
    if (values[1:] > 1).any():
        return "coordinate above 1 (coordinates are fractions of the image)"
    if number != int(number) or number > 2**24:  # from there on float32 leaves integers out
        return f"class {number} is not an integer"
    return ""
