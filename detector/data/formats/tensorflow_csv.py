"""Roboflow's TensorFlow csv: `_annotations.csv` beside the images, one row per object."""

import csv
from collections import defaultdict
from io import StringIO
from pathlib import Path

from boltbox.detector.data.formats.format import (
    CORNERS,
    Entry,
    Format,
    ImageLabels,
    LabelObject,
    image_size_of,
    number,
)
from boltbox.detector.data.images import SUFFIXES
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text

COLUMNS = {"filename", "width", "height", "class"}.union(CORNERS)
Row = tuple[int, dict[str, str]]  # number of the line, values by column


class TensorflowCsv(Format):
    """A split is a csv file, or several, with the columns filename, width, height, class, xmin,
    ymin, xmax, ymax, in pixels. Images beside it that are in no row have no objects, unless another
    csv file lies there; names that begin with a dot are left out."""

    def find(self) -> list[Entry]:
        entries = []
        for path in self.split.paths:
            rows_of: dict[str, list[Row]] = defaultdict(list)
            for line, row in _rows(path):
                rows_of[row["filename"]].append((line, row))
            images = set(rows_of)
            listing = self.files.folder(path.parent)
            visible = [name for name in listing or () if not name.startswith(".")]
            if sum(name.lower().endswith(".csv") for name in visible) == 1:
                for name in visible:
                    if Path(name).suffix.lower() in SUFFIXES:
                        images.add(name)
            for name in sorted(images):
                entries.append(Entry(str(path.parent / name), str(path), rows_of[name]))
        return entries

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels:
        objects = []
        size = None
        for line, row in entry.key:
            name = row["class"]
            box = [number(row[corner]) for corner in CORNERS]
            objects.append(LabelObject(f"line {line} ({name})", name, box))
            size = image_size_of(row["height"], row["width"])
        return ImageLabels(objects, size)


def _rows(path: Path) -> list[Row]:
    """The rows of a file.

    Raises:
        InputError: "FILE: why": it cannot be read, or lacks a column.
    """
    reader = csv.DictReader(StringIO(read_text(path)), restval="")
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as e:
        raise InputError(f"{path}: not a csv file ({e})") from None
    missing = COLUMNS.difference(reader.fieldnames if reader.fieldnames else ())
    if missing:
        raise InputError(f"{path}: the columns {', '.join(sorted(missing))} are missing")
    return rows
