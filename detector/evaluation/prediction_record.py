"""What an evaluation saw, kept in the run's folder: every detection and every label it was compared
with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from boltbox.detector.evaluation.class_metrics import IOU_THRESHOLDS, match
from boltbox.detector.evaluation.confusion import confused_pairs
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.file_names import common_folder, inside

ABOUT = ("names", "files", "command", "epoch")


@dataclass
class PredictionRecord:
    """Detections and labels of an evaluated split.

    sizes (images, 2) int64 height, width · image (n,) number of the image from 0, box (n, 4) xyxy
    pixels of the file, score (n,), kind (n,) class: the detections, image by image, the most
    confident first · label_image (m,), label_box (m, 4), label_kind (m,), label_area (m,) square
    pixels: the labels, clipped to their images, without crowd regions · names: of the classes ·
    files: of the images · command, epoch: of the evaluation (-1 outside a fit).
    """

    sizes: np.ndarray
    image: np.ndarray
    box: np.ndarray
    score: np.ndarray
    kind: np.ndarray
    label_image: np.ndarray
    label_box: np.ndarray
    label_kind: np.ndarray
    label_area: np.ndarray
    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    command: str = ""
    epoch: int = -1

    def save(self, path: Path) -> None:
        """Not compressed: that would take seconds, after every better epoch."""
        write_atomically(path, lambda file: np.savez(file, **vars(self)))

    @classmethod
    def load(cls, path: Path) -> PredictionRecord:
        """Raises InputError, in one sentence, if the file is not what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as content:
                return cls(**{k: v.tolist() if k in ABOUT else v for k, v in content.items()})
        except (OSError, ValueError, TypeError, EOFError, AttributeError, BadZipFile) as e:
            raise InputError(
                f"{path}: not a file of detections of ours ({in_one_line(e)}); evaluate again with"
                " validate"
            ) from None

    def by_image(self) -> Iterator[tuple[slice, slice]]:
        """The rows of each image's detections, and of its labels."""
        numbers = np.arange(len(self.sizes) + 1)
        ends = (np.searchsorted(of, numbers).tolist() for of in (self.image, self.label_image))
        for found, labels in zip(*map(pairwise, ends), strict=True):
            yield slice(*found), slice(*labels)

    def true_positives(self) -> np.ndarray:
        """(n, 10) bool: which detections are true positives, by IoU threshold, see `match`."""
        parts = [np.zeros((0, len(IOU_THRESHOLDS)), bool)]
        for d, t in self.by_image():
            parts.append(match(self.box[d], self.kind[d], self.label_box[t], self.label_kind[t]))
        return np.concatenate(parts)

    def confused_pairs(self, num_classes: int) -> np.ndarray:
        """(n, 2): see `confused_pairs`, of all images."""
        pairs = [np.zeros((0, 2), np.int64)]
        for d, t in self.by_image():
            found, true = (self.box[d], self.score[d], self.kind[d]), self.label_box[t]
            pairs.append(confused_pairs(*found, true, self.label_kind[t], num_classes))
        return np.concatenate(pairs)

    def name_of(self, i: int) -> str:
        """Image i's file, below the common folder of all."""
        return inside(self.files[i], common_folder(self.files))
