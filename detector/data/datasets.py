"""Images with labels on disk -> Samples, whatever the label format; the formats are in yolo_txt.py, voc_xml.py, coco_json.py.

A bad box is dropped and named, not its image; an image is dropped only if it cannot be used at all.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from detector.data.images import read_image
from detector.data.report import DataReport
from detector.data.sample import Frame, Labels, Sample, Tile
from detector.errors import InputError

FARTHEST = 2.0**24  # pixels; beyond, float32 cannot tell neighbours apart


class DetectionDataset(Dataset):
    """Images with labels; item i is the i-th Sample at the file's own resolution, without crowd regions.

    Attributes:
        files: image paths · labels: their Labels · names: class names · report: what was found and left out.
    """

    def __init__(self, files: list[str], labels: list[Labels], names: list[str], report: DataReport) -> None:
        self.files, self.labels, self.names, self.report = files, labels, names, report
        report.images, report.boxes = len(files), sum(len(x.boxes) for x in labels)
        report.background = sum(len(x.boxes) == 0 for x in labels)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Sample:
        image = read_image(self.files[i])
        height, width = image.shape[:2]
        return replace(self.undrawn(i), image=image, frame=Frame(height, width), tiles=[])

    def undrawn(self, i: int) -> Sample:
        """Item i, its image not yet read."""
        labels = self.labels[i]
        if labels.crowd.any():
            labels = labels.keep(~labels.crowd)
        height, width = labels.height, labels.width
        return Sample(
            np.empty((height, width, 0), np.uint8),
            labels.boxes.copy(),
            labels.classes.copy(),
            list(labels.polygons),
            Frame(height, width),
            index=i,
            tiles=[Tile(partial(_read, self.files[i], max(height, width)), 0, 0, width, height)],
        )

    def merge_classes(self) -> None:
        """Single-class mode: every object becomes class 0, named `item` unless there is just one name."""
        self.names = self.names if len(self.names) == 1 else ["item"]
        for labels in self.labels:
            labels.classes[:] = 0

    def check_classes(self) -> None:
        """Raises InputError, naming a file, if a class number has no name."""
        for file, labels in zip(self.files, self.labels, strict=True):
            if len(labels.classes) and labels.classes.max() >= len(self.names):
                raise InputError(
                    f"{file}: its labels hold class {labels.classes.max()}, but the data set has {len(self.names)} names "
                    f"(0 to {len(self.names) - 1}); correct the labels or `names`, or use --data.single_class true"
                )

    def class_counts(self) -> np.ndarray:
        """(C,) number of boxes of each class, crowd regions left out."""
        classes = np.concatenate([np.zeros(0, np.int64), *(x.classes[~x.crowd] for x in self.labels)])
        return np.bincount(classes, minlength=len(self.names))

    def shapes(self) -> np.ndarray:
        """(n, 2) height and width of every image in pixels."""
        return np.array([(x.height, x.width) for x in self.labels]).reshape(-1, 2)


def _read(file: str, longer: int, least: int) -> np.ndarray:
    """An image whose longer side has `longer` pixels; `least` (not 0) pixels of them will do."""
    return read_image(file, next((k for k in (8, 4, 2) if least and longer >= k * least), 1))


def box_problem(xyxy: Sequence[float]) -> str:
    """What is wrong with four corner numbers, or an empty string."""
    with np.errstate(over="ignore"):
        x1, y1, x2, y2 = corners = np.array(xyxy, np.float32)  # as they are kept
    if not np.isfinite(corners).all():
        return "missing or non-finite coordinate"
    if np.abs(corners).max() >= FARTHEST:
        return f"coordinate beyond {FARTHEST:.0f} px"
    return "zero or negative width or height" if x2 <= x1 or y2 <= y1 else ""


def read_lines(source: Path) -> list[str]:
    """The lines of a text file that are not empty; InputError if it is no text."""
    try:
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{source}: this is not a text file; a list of images has one a line") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
