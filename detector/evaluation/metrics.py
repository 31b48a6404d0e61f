"""The metrics of an evaluation: collected batch by batch, computed at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from boltbox.detector.data.sample import Labels
from boltbox.detector.evaluation.class_metrics import ClassMetrics, class_metrics
from boltbox.detector.evaluation.coco import coco_metrics
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.system.gather import gather_on_first

COLUMNS = ("P", "R", "mAP50", "mAP50-95", "coco/AP")  # of a class in metrics.json


@dataclass
class Result:
    """An epoch's metrics, and what they were computed from.

    Attributes:
        summary: Metrics by name.
        by_class: YOLOv5's metrics per class.
        coco_by_class: (C,) COCO's AP per class.
        indices: Numbers of the images in the dataset, in ascending order.
        record: Their detections and labels.
        losses: Means of the named loss terms over batches; each batch has the same weight.
    """

    summary: dict[str, float]
    by_class: ClassMetrics
    coco_by_class: np.ndarray
    indices: list[int]
    record: PredictionRecord
    losses: dict[str, float] = field(default_factory=dict)

    def class_maps(self) -> np.ndarray:
        """(C,) mAP50-95 per class; classes without objects get the mean, as in YOLOv5."""
        maps = np.full(len(self.coco_by_class), self.summary["mAP50-95"])
        maps[self.by_class.classes] = self.by_class.ap.mean(1)
        return maps

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Content of metrics.json, with a row per class that has objects; NaN becomes null."""
        metrics = self.by_class
        rows = []
        for i, number in enumerate(metrics.classes.tolist()):
            values = (
                metrics.precision[i],
                metrics.recall[i],
                metrics.ap[i, 0],
                metrics.ap[i].mean(),
                self.coco_by_class[number],
            )
            row = {"name": names[number], "objects": int(metrics.objects[i])}
            rows.append(row | _without_nan(dict(zip(COLUMNS, values, strict=True))))
        return _without_nan(self.summary) | {
            "images": len(self.indices),
            "objects": int(metrics.objects.sum()),
            "best_confidence": metrics.best_confidence,
            "per_class": rows,
        }


def _without_nan(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """NaN as None, since JSON has no NaN."""
    return {name: float(v) if math.isfinite(v) else None for name, v in numbers.items()}


class _Image(NamedTuple):
    """An image that was evaluated.

    Attributes:
        size: Height, width in pixels.
        rows: (n, 6) detections.
        labels: (m, 7) box, class, crowd, area.
    """

    size: tuple[int, int]
    rows: np.ndarray
    labels: np.ndarray


class DetectionMetrics:
    """YOLOv5's and COCO's metrics of a dataset.

    The order of the images does not matter, a batch that is added twice counts once, and several
    processes compute the same as one.

    Args:
        num_classes: C.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.reset()

    def reset(self) -> None:
        """Forget all images."""
        self._images: dict[int, _Image] = {}  # by number in the dataset
        self._losses: dict[int, dict[str, float]] = {}  # by the number of a batch's first image

    def update(
        self,
        predictions: Sequence[np.ndarray],
        targets: Sequence[Labels],
        indices: Sequence[int],
        losses: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a batch of images.

        Args:
            predictions: Per image (n, 6): x1, y1, x2, y2 in pixels of the file, score, class; best
                first.
            targets: Their labels.
            indices: Their numbers in the dataset.
            losses: Named parts of the batch's loss.
        """
        for index, rows, target in zip(indices, predictions, targets, strict=True):
            columns = (target.boxes, target.classes, target.crowd, target.area)
            labels = np.column_stack(columns).astype(np.float32)
            self._images[index] = _Image((target.height, target.width), rows, labels)
        if losses:
            self._losses[indices[0]] = {name: float(value) for name, value in losses.items()}

    @property
    def seen(self) -> int:
        """Number of images that this process has added."""
        return len(self._images)

    def gather(self) -> None:
        """Move the images of all processes to the first one; every process calls it."""
        parts = gather_on_first((self._images, self._losses))
        self.reset()
        for images, losses in parts:
            self._images = images | self._images
            self._losses |= losses

    def compute(self) -> Result:
        """The metrics of all images, and their record, without crowd regions."""
        indices = sorted(self._images)
        images = [self._images[index] for index in indices]
        sizes = np.array([image.size for image in images]).reshape(-1, 2)
        image, rows = _joined([image.rows for image in images], 6)
        label_image, labels = _joined([image.labels for image in images], 7)
        coco, coco_by_class = coco_metrics(image, rows, label_image, labels, self.num_classes)
        is_object = labels[:, 5] == 0
        label_image = label_image[is_object]
        labels = labels[is_object]
        width_and_height = sizes[label_image, ::-1]
        boxes = np.minimum(labels[:, :4].clip(0), np.tile(width_and_height, 2))
        record = PredictionRecord(
            sizes=sizes,
            image=image,
            box=rows[:, :4],
            score=rows[:, 4],
            kind=rows[:, 5].astype(np.int32),
            label_image=label_image,
            label_box=boxes.astype(np.float32),
            label_kind=labels[:, 4].astype(np.int64),
            label_area=labels[:, 6],
        )
        by_class = class_metrics(
            record.true_positives(), record.score, record.kind, record.label_kind
        )
        summary = by_class.summary()
        for name, value in coco.items():
            summary[f"coco/{name}"] = value
        return Result(summary, by_class, coco_by_class, indices, record, self._mean_losses())

    def _mean_losses(self) -> dict[str, float]:
        means: dict[str, float] = {}
        for _, losses in sorted(self._losses.items()):
            for name, value in losses.items():
                means[name] = means.get(name, 0.0) + value
        return {name: total / len(self._losses) for name, total in means.items()}


def _joined(parts: Sequence[np.ndarray], columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The position of each row's part, and the rows of all parts."""
    position = np.arange(len(parts)).repeat([len(part) for part in parts])
    return position, np.concatenate([np.zeros((0, columns), np.float32), *parts])
