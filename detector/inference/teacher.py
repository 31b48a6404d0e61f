"""Trained detectors that label images, and from which confidence on they are believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from boltbox.detector.data.class_names import same_names
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.inputs.sources import Sources
from boltbox.detector.data.sample import Picture
from boltbox.detector.evaluation.class_metrics import match
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.system.errors import InputError

LEAST = 0.01  # confidence of a detection that is looked at
PRECISION = 0.9  # of the boxes that count as objects


class Teacher:
    """Detectors that look at whole images, each as it was trained, and together.

    Args:
        files: see `Predictor.load`; of several each knows its own classes.
        names: of the classes that are learned; the detectors' are found among them by name.
        workers: processes that read images, at most.
        single_class: all are one class.

    Attributes:
        unknown: those of `names` that it does not know.

    Raises:
        InputError: no such file, not a detector, or none of its classes is learned.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        names: Sequence[str],
        device: torch.device,
        workers: int,
        single_class: bool = False,
    ) -> None:
        options: dict[str, Any] = {"conf": LEAST, "max_det": 300}
        self.predictor = Predictor.load(files[0], files[1:], device, **options)
        self.workers, pairs = workers, same_names(names, self.predictor.names)
        if not pairs:
            raise InputError(
                f"teacher: none of its classes ({', '.join(self.predictor.names)}) is one of the"
                f" data set's ({', '.join(names)})"
            )
        self.predictor.thresholds["classes"] = [*pairs]
        self.numbers = np.zeros(len(self.predictor.names))
        self.unknown: list[str] = []
        if not single_class:
            self.numbers[[*pairs]] = [*pairs.values()]
            self.unknown = [name for c, name in enumerate(names) if c not in pairs.values()]

    def look_at(
        self, files: Sequence[str]
    ) -> Iterator[tuple[Picture, tuple[int, int], np.ndarray]]:
        """Of each image that can be read: which it is, its height and width in pixels, and (n, 6)
        x1, y1, x2, y2 in its pixels, confidence, class; best first. Others are named."""
        inputs = self.predictor.inputs()
        batches = Sources([*files], []).batches(inputs, 16, self.workers)
        with tqdm(total=len(files), unit=" images", desc="teacher", disable=None) as bar:
            for batch, found in self.predictor.find(batches):
                for picture, box, rows in zip(
                    batch.pictures or [], batch.letterboxes, found, strict=True
                ):
                    assert box is not None
                    rows[:, 5] = self.numbers[rows[:, 5].astype(int)]
                    yield picture, (box.height, box.width), rows
                bar.update(len(found))

    def thresholds(self, dataset: DetectionDataset) -> tuple[float, float]:
        """Two confidences, by labelled images that it was not trained on: from the first on nine of
        ten boxes are objects, from the second on their F2 is best, in which a missed object weighs
        four times as much as a wrong box."""
        truths = dict(zip(dataset.files, dataset.labels, strict=True))
        right, scores, objects = [np.zeros(0, bool)], [np.zeros(0, np.float32)], 0
        for picture, _, rows in self.look_at(dataset.files):
            truth = truths[picture.path].keep(~truths[picture.path].crowd)
            known = ~np.isin(truth.classes, [dataset.names.index(name) for name in self.unknown])
            own = truth.keep(known)
            objects += len(own.boxes)
            right.append(match(rows[:, :4], rows[:, 5], own.boxes, own.classes)[:, 0])
            scores.append(rows[:, 4])
        return believed(np.concatenate(right), np.concatenate(scores), objects)


def believed(right: np.ndarray, scores: np.ndarray, objects: int) -> tuple[float, float]:
    """See `Teacher.thresholds`.

    Args:
        right: (n,) bool, whether each box is an object. scores: (n,) its confidence.
        objects: how many there are.

    >>> believed(np.array([True, True, False, True]), np.array([0.9, 0.8, 0.3, 0.2]), 3)
    (0.8, 0.2)
    """
    scores, each = np.unique(scores, return_inverse=True)  # of one score all are believed, or none
    boxes, hits = (np.bincount(each, w, len(scores))[::-1].cumsum()[::-1] for w in (None, right))
    if not hits.any():
        return 1.0, 1.0
    sure = np.append(scores[hits >= PRECISION * boxes], 1.0)[0]
    unsure = scores[(5 * hits / (4 * objects + boxes)).argmax()]
    return float(sure), float(min(unsure, sure))
