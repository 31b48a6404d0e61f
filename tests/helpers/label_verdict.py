"""What a slow, strict reader finds in a label file, and the data set's reader compared with it."""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.system.errors import InputError

HEIGHT = 40
WIDTH = 60
NAMES = ["cat", "dog"]
STAMPS = count(1)


def number(text: str) -> float | None:
    """A finite number as Python reads it, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Verdict(NamedTuple):
    """What the strict reader says. boxes: (class, xyxy pixels) by place; rejected: places; whole:
    the file cannot be used."""

    boxes: dict[Any, tuple[int, list[float]]]
    rejected: list[Any]
    whole: bool = False


def rewrite(path: Path, data: bytes) -> None:
    """With a time of its own: a cache that goes by time and size must not take one example for
    another."""
    path.write_bytes(data)
    os.utime(path, ns=(next(STAMPS) * 10**6,) * 2)


def opened(folder: Path) -> tuple[DetectionDataset | None, str]:
    """The training split and an empty string, or nothing and the error; also as strict as `fit`
    is."""
    with suppress(InputError):
        check_promises(DatasetFile.read(str(folder)).open("train"))
    try:
        dataset = DatasetFile.read(str(folder)).open("train", strict=False)
    except InputError as e:
        return None, str(e)
    check_promises(dataset)
    return dataset, ""


def check_promises(dataset: DetectionDataset) -> None:
    for labels in dataset.labels:
        assert np.isfinite(labels.boxes).all()
        assert np.isfinite(labels.area).all()
        assert (labels.boxes[:, 2:] > labels.boxes[:, :2]).all()
        assert ((labels.classes >= 0) & (labels.classes < len(NAMES))).all()
        assert all(np.isfinite(part).all() for parts in labels.polygons for part in parts)


def compare(
    verdict: Verdict, boxes: list[tuple[int, list[float]]], named: Callable[[Any], bool]
) -> None:
    """Every box that came out is one of the verdict's, each used once; every place that gave no box
    is named."""
    left = dict(verdict.boxes)
    for c, box in boxes:
        match = [
            place
            for place, (other, b) in left.items()
            if other == c and np.allclose(box, b, rtol=3e-7, atol=1e-4)
        ]
        assert match, f"class {c}, {box} is in no line that a strict reader accepts"
        left.pop(next((place for place in match if not named(place)), match[0]))
    assert [place for place in (*verdict.rejected, *left) if not named(place)] == []


def out(dataset: DetectionDataset, stem: str) -> list[tuple[int, list[float]]]:
    """Boxes of the images of a stem."""
    found = []
    for path, labels in zip(dataset.files, dataset.labels, strict=True):
        if Path(path).stem == stem:
            found += list(zip(labels.classes.tolist(), labels.boxes.tolist(), strict=True))
    return found
