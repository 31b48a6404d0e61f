"""DOTA's oriented boxes, also an export of Roboflow: for `.../images/a/b.jpg` the file
`.../labelTxt/a/b.txt`, a line an object: `x1 y1 x2 y2 x3 y3 x4 y4 class difficult` in pixels."""

from collections.abc import Iterator, Mapping, Sequence
from os.path import isfile
from pathlib import Path

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

    @classmethod
    def find_names(cls, root: Path, splits: Mapping[str, Sequence[Path]]) -> list[str]:
        """Those in the labels of all splits, in alphabetical order."""
        files = cls.label_files(root, splits)
        return sorted({str(item.name) for file in files for item in _objects(file)} - {""})

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels | None:
        if not isfile(entry.file):
            return None
        return ImageLabels([*_objects(entry.file, self.split.keep_difficult)])


def _objects(file: str, keep_difficult: bool = False) -> Iterator[LabelObject]:
    """The lines of a label file but DOTA's first two, `imagesource:...` and `gsd:...`."""
    for k, line in enumerate(read_text(file, replace=True).split("\n"), 1):
        fields = line.split()
        if fields and ":" not in fields[0]:
            name = " ".join(fields[8:-1])
            x, y = np.array([*map(number, [*fields, *[""] * 8][:8])]).reshape(4, 2).T
            problem = DIFFICULT if fields[-1] == "1" and not keep_difficult else ""
            box = (x.min(), y.min(), x.max(), y.max())
            yield LabelObject(f"line {k} ({name})", name, box, problem)
