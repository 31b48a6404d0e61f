"""Hugging Face's imagefolder: metadata.jsonl, one line per image, boxes under `objects`."""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from boltbox.detector.data.formats.format import Entry, Format, ImageLabels, LabelObject, corners
from boltbox.detector.system.addresses import join
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import read_text


class MetadataJsonl(Format):
    """A split is a metadata.jsonl, or several. A line has `file_name`, relative to the file, and
    `objects` with `bbox` (x, y, width, height in pixels) and `category` or `categories` (numbers or
    names)."""

    def find(self) -> list[Entry]:
        entries = []
        for path in self.split.paths:
            for line, row in _rows(path):
                image = join(path.parent, row["file_name"])
                entries.append(Entry(image, str(path), (line, row)))
        return entries

    def read(self, entry: Entry, height: int, width: int) -> ImageLabels:
        line, row = entry.key
        objects = []
        for k, (label, box) in enumerate(_objects(row), 1):
            place = f"line {line}, object {k} ({label})"
            objects.append(LabelObject(place, label, corners(box)))
        return ImageLabels(objects)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of each line.

    Raises:
        InputError: a line is no JSON object with `file_name`.
    """
    for k, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            is_row = isinstance(row["file_name"], str)
        except (ValueError, KeyError, TypeError, RecursionError):
            is_row = False
        if not is_row:
            raise InputError(f"{path}, line {k}: not a JSON object with the key file_name")
        yield k, row


def _objects(row: dict[str, Any]) -> Iterator[tuple[str | int, Any]]:
    """Class and box of each object of a line: lists of both, or a list of objects."""
    objects = row.get("objects")
    if isinstance(objects, list) and all(isinstance(item, dict) for item in objects):
        keys = set().union(*objects)
        objects = {key: [item.get(key) for item in objects] for key in keys}
    if not isinstance(objects, dict):
        return
    labels = objects.get("category", objects.get("categories"))
    boxes = objects.get("bbox")
    if isinstance(labels, list) and isinstance(boxes, list):
        for label, box in zip_longest(labels, boxes):
            yield label if isinstance(label, int) else str(label), box
