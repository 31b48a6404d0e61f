"""Images that nobody has labelled, as training images: what a teacher found in them, in files of
the run that a person can read and correct."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_table import LabelSource, LabelTable, starts
from boltbox.detector.model.boxes import area_xyxy, cxcywhn_to_xyxy
from boltbox.detector.model.unsure import UNSURE, nobody_looked
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import read_text


@dataclass(frozen=True)
class Taught:
    """teacher.json: what labels/NAME.txt beside it are made of.

    teacher: SHA-256 of its files, by name · images: a digest of all files in the folder · names: of
    the classes · unknown: those that the teacher does not know · sure: from this confidence on a
    box is an object · unsure: from this one on it may be one · files: of the images that were
    labelled · sizes: their height and width in pixels · labels: the name of each label file.
    """

    teacher: dict[str, str]
    images: str
    names: list[str]
    unknown: list[str]
    sure: float
    unsure: float
    files: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Taught:
        """Raises InputError if teacher.json of a folder is not what `write` has written."""
        path = folder / "teacher.json"
        try:
            return cls(**json.loads(read_text(path)))
        except (TypeError, ValueError):
            raise InputError(
                f"{path}: it is damaged; delete it, and the teacher looks again"
            ) from None

    def write(self, folder: Path) -> None:
        write_atomically(folder / "teacher.json", json.dumps(asdict(self), indent=1))

    def rows(self, folder: Path, i: int) -> np.ndarray:
        """(n, 6) x1, y1, x2, y2 in pixels, confidence, class of image i, as its label file says
        now: a line of five numbers, as a person writes it, has the confidence 1.

        Raises:
            InputError: a line is no object.
        """
        path, rows = folder / "labels" / f"{self.labels[i]}.txt", []
        for number, line in enumerate(read_text(path).splitlines(), 1):
            try:
                values = [*map(float, line.split()), 1.0][:6]
                c, *box, confidence = values
                if not np.isfinite(values).all() or c not in range(len(self.names)):
                    raise ValueError
            except ValueError:
                raise InputError(
                    f"{path}, line {number}: {line!r} is no object; write class cx cy w h and"
                    f" a confidence, with a class from 0 to {len(self.names) - 1}"
                ) from None
            rows.append([*box, confidence, c])
        table = np.array(rows, np.float32).reshape(-1, 6)
        height, width = self.sizes[i]
        table[:, :4] = cxcywhn_to_xyxy(table[:, :4], width, height)
        return table

    def sure_and_unsure(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of rows (n, 6) that are objects, and those that may be."""
        score = rows[:, 4]
        return rows[score >= self.sure], rows[(score >= self.unsure) & (score < self.sure)]

    def dataset(self, folder: Path) -> DetectionDataset:
        """The images, announced in a line. What may be an object is of class UNSURE; each image
        is one box of a class that the teacher does not know, see `nobody_looked`."""
        unknown = [nobody_looked(self.names.index(name)) for name in self.unknown]
        boxes, classes = [], []
        for i, (height, width) in enumerate(self.sizes):
            sure, doubtful = self.sure_and_unsure(self.rows(folder, i))
            everywhere = np.tile(np.array((0, 0, width, height), np.float32), (len(unknown), 1))
            boxes.append(np.concatenate((sure[:, :4], doubtful[:, :4], everywhere)))
            numbers = sure[:, 5], np.full(len(doubtful), UNSURE), unknown
            classes.append(np.concatenate(numbers).astype(np.int64))
        labels = _table(self.sizes, boxes, classes)
        more = f"; it does not know {', '.join(self.unknown)}" if self.unknown else ""
        rank_zero_print(
            f"teacher: {len(boxes)} unlabelled images, {(labels.classes >= 0).sum()} objects"
            f" (confidence from {self.sure:.2f}), {(labels.classes == UNSURE).sum()} that may be"
            f" objects (from {self.unsure:.2f}){more}"
        )
        sources = [LabelSource(str(folder / "labels" / f"{name}.txt")) for name in self.labels]
        return DetectionDataset(self.files, labels, self.names, sources)


def check_teacher(
    unlabelled: str | None, teacher: Sequence[str] | None, rect: bool, batch_size: int | str
) -> None:
    """Raises InputError for options of DetectionData that do not go together."""
    if bool(unlabelled) != bool(teacher):
        raise InputError(
            "data.unlabelled FOLDER and --teacher FILE need one another: images, and a trained"
            " detector that labels them, like the best.ckpt of a fit on your labels alone"
        )
    if unlabelled and (rect or batch_size == 1):
        raise InputError("data.unlabelled needs data.rect false and a data.batch_size of 2 or more")


def _table(
    sizes: Sequence[tuple[int, int]], boxes: Sequence[np.ndarray], classes: Sequence[np.ndarray]
) -> LabelTable:
    """Without polygons and crowd regions."""
    joined = np.concatenate([np.zeros((0, 4), np.float32), *boxes])
    none = np.zeros(len(joined) + 1, np.int64)
    return LabelTable(
        np.array(sizes, np.int64).reshape(-1, 2),
        starts(boxes),
        joined,
        np.concatenate([np.zeros(0, np.int64), *classes]),
        np.zeros(len(joined), bool),
        area_xyxy(joined),
        none,
        none[:1],
        np.zeros((0, 2), np.float32),
    )
