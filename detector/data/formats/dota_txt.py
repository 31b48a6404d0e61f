"""DOTA's oriented boxes, also an export of Roboflow: for `.../images/a/b.jpg` the file
`.../labelTxt/a/b.txt`, one line per object: `x1 y1 x2 y2 x3 y3 x4 y4 class difficult` in pixels."""

import math

import numpy as np

from boltbox.detector.data.formats.format import (
    DIFFICULT,
    Entry,
    ImageLabels,
    LabelObject,
    number,
)
from boltbox.detector.data.formats.yolo_txt import YoloText
from boltbox.detector.system.text_file import read_text


class DotaText(YoloText):
    """A split as in YoloText. The box of an object is the one around its corners."""

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
                numbers = list(map(number, fields[:8]))
                missing = [math.nan] * (8 - len(numbers))
                points = np.array(numbers + missing).reshape(4, 2)
                box = np.concatenate((points.min(0), points.max(0)))
                problem = DIFFICULT if fields[-1] == "1" else ""
                objects.append(LabelObject(f"line {k} ({name})", name, box, problem))
        return ImageLabels(objects)
