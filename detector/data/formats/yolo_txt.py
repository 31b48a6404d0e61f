"""Text labels of YOLO and of DOTA, whose files are found alike.

YOLO: for `.../images/a/b.jpg` the file `.../labels/a/b.txt`, one line per object: `class cx cy w
h`, or `class x y x y ...` for a polygon, as fractions of the image.
"""

import math
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from boltbox.detector.data.formats.format import (
    DIFFICULT,
    NO_BOX,
    Entry,
    ImageLabels,
    LabelObject,
    PerImageFormat,
    find_tail,
    number,
)
from boltbox.detector.data.images import read_lines
from boltbox.detector.model.boxes import cxcywhn_to_xyxy, xyxy_to_cxcywh
from boltbox.detector.system.addresses import join
from boltbox.detector.system.text_file import read_text

# fraction of the image, as a float32; thinner, and the two edges of a box become one
MIN_SIDE = float(np.float32(1e-6))


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

    def listed_images(self, source: Path) -> Iterator[str | Path]:
        root = self.split.root
        for line in read_lines(source):
            # `line` as it is: where the current folder is another one, the files have changed
            places = [join(source.parent, line), join(root, line), line]
            image: str | Path | None = next(filter(self.files.is_file, places), None)
            if image is None:
                image = find_tail(line, self.files.is_file, source.parent, root) or places[0]
            elif image == line:
                image = join(Path.cwd(), line)
            yield image

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


class DotaText(YoloText):
    """DOTA's oriented boxes, also an export of Roboflow: for `.../images/a/b.jpg` the file
    `.../labelTxt/a/b.txt`, one line per object: `x1 y1 x2 y2 x3 y3 x4 y4 class difficult` in
    pixels. The box of an object is the one around its corners."""

    folder = "labelTxt"

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        if not self.files.is_file(entry.file):
            return None
        objects = []
        for k, line in enumerate(read_text(entry.file, replace=True).split("\n"), 1):
            fields = line.split()
            # the first two lines may be `imagesource:...` and `gsd:...`
            if fields and ":" not in fields[0]:
                name = " ".join(fields[8:-1])
                missing = ["nan"] * (8 - len(fields))
                numbers = list(map(number, fields[:8] + missing))
                points = np.array(numbers).reshape(4, 2)
                box = np.concatenate((points.min(0), points.max(0)))
                problem = DIFFICULT if fields[-1] == "1" else ""
                objects.append(LabelObject(f"line {k} ({name})", name, box, problem))
        return ImageLabels(objects)


def parse_yolo(text: str) -> Iterator[LabelObject]:
    """The lines of a label file that are not empty.

    Args:
        text: of the file.

    Returns:
        Objects with box cx, cy, w, h, of a polygon too, and polygon, one part (k, 2) float32 or
        none, as fractions of the image, rounded to float32. An exact duplicate of an earlier line
        has a problem.
    """
    earlier = set()  # class and box of a line
    for k, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            values = array("f", map(float, fields)).tolist()  # rounds to float32
            problem = _problem(float(fields[0]), values)
        except ValueError:
            values = [math.nan]
            problem = "not a number"
        polygons = []
        box = values[1:]
        if len(box) > 4 and not problem:
            polygon = np.array(box, np.float32).reshape(-1, 2)
            polygons = [polygon]
            corners = np.concatenate((polygon.min(0), polygon.max(0)))
            box = xyxy_to_cxcywh(corners).tolist()
        name = -1
        if not problem:
            key = (values[0], *box)
            if min(box[2:]) < MIN_SIDE:
                problem = "zero width or height"
            elif key in earlier:
                problem = "duplicate of an earlier line"
            else:
                earlier.add(key)
                name = int(values[0])
        shown = box if len(box) == 4 else NO_BOX
        yield LabelObject(f"line {k}", name, shown, problem, polygons)


def _problem(number: float, values: list[float]) -> str:
    """What is wrong with the numbers of one line, or an empty string. number: the class, which
    float32 may have rounded."""
    if len(values) == 6:
        return "wrong column count (6; a box has 5, which predict --confidences false writes)"
    if len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0):
        return f"wrong column count ({len(values)}; a box has 5, a polygon 7, 9, 11, ...)"
    if not all(map(math.isfinite, values)):
        return "non-finite value"
    if min(values) < 0:
        return "negative value"
    if max(values[1:]) > 1:
        return "coordinate above 1 (coordinates are fractions of the image)"
    if not number.is_integer() or number > 2**24:  # from there on float32 leaves integers out
        return f"class {number} is not an integer"
    return ""
