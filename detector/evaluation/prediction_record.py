"""Every detection and every label of an evaluation, saved in the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from boltbox.detector.evaluation.confusion import confused_pairs
from boltbox.detector.evaluation.matching import by_images, match
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.rank_zero import common_folder, inside

ABOUT = ("names", "files", "command", "epoch")


@dataclass
class PredictionRecord:
    """Detections and labels of an evaluated split.

    Attributes:
        sizes: (images, 2) int64 height, width.
        image: (n,) number of each detection's image from 0, in ascending order.
        box: (n, 4) xyxy pixels of the file.
        score: (n,) confidence, in descending order within an image.
        kind: (n,) class.
        label_image: (m,) number of each label's image. There are no crowd regions.
        label_box: (m, 4) xyxy, clipped to the image.
        label_kind: (m,) class.
        label_area: (m,) square pixels.
        names: Class names.
        files: Image files.
        command: Of the evaluation.
        epoch: Of the evaluation; -1 outside a fit.
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
        """Write the record, not compressed: that would take seconds after every better epoch."""
        write_atomically(path, lambda file: np.savez(file, **vars(self)))

    @classmethod
    def load(cls, path: Path) -> PredictionRecord:
        """Read what `save` wrote.

        Raises:
            InputError: The file holds something else.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                values = dict(content)
            for name in ABOUT:
                values[name] = values[name].tolist()
            return cls(**values)
        except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile) as e:
            raise InputError(
                f"{path}: not a file of detections of boltbox ({in_one_line(e)}). Evaluate again"
                " with validate"
            ) from None

    def by_image(self) -> Iterator[tuple[slice, slice]]:
        """The rows of each image's detections, and of its labels."""
        return by_images(self.image, self.label_image, 1)

    def true_positives(self) -> np.ndarray:
        """(n, 10) bool: which detections are true positives by IoU threshold, see `match`."""
        classes = max(self.kind.max(initial=0), self.label_kind.max(initial=0)) + 1
        groups = self.image.astype(np.int64) * classes + self.kind
        label_groups = self.label_image * classes + self.label_kind
        parts = []
        for d, t in by_images(self.image, self.label_image):
            parts.append(match(self.box[d], groups[d], self.label_box[t], label_groups[t]))
        return np.concatenate(parts)

    def confused_pairs(self, num_classes: int) -> np.ndarray:
        """(p, 2) predicted and true class, see `confused_pairs`, of all images."""
        parts = []
        for d, t in self.by_image():
            pairs = confused_pairs(
                self.box[d],
                self.score[d],
                self.kind[d],
                self.label_box[t],
                self.label_kind[t],
                num_classes,
            )
            parts.append(pairs)
        return np.concatenate(parts)

    def name_of(self, i: int) -> str:
        """Image i's file, below the common folder of all."""
        return inside(self.files[i], common_folder(self.files))
