"""How good detections are: what an epoch collects, and the metrics of all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from boltbox.detector.data.sample import Labels
from boltbox.detector.evaluation.class_metrics import ClassMetrics, class_metrics
from boltbox.detector.evaluation.coco import coco_metrics
from boltbox.detector.evaluation.prediction_record import PredictionRecord

COLUMNS = ("P", "R", "mAP50", "mAP50-95", "coco/AP")  # of a class in metrics.json


@dataclass
class Result:
    """An epoch's metrics: `summary` by name, `by_class`, `coco_by_class` (C,); and what they were
    computed from: `indices`, the numbers of the images in the data set, in ascending order, and the
    `record` of their detections and labels. losses: means of the loss's named parts over batches,
    each of which counts alike, whatever its size."""

    summary: dict[str, float]
    by_class: ClassMetrics
    coco_by_class: np.ndarray
    indices: list[int]
    record: PredictionRecord
    losses: dict[str, float] = field(default_factory=dict)

    def class_maps(self) -> np.ndarray:
        """(C,) mAP50-95 of each class; classes without objects get the mean, as in YOLOv5."""
        maps = np.full(len(self.coco_by_class), self.summary["mAP50-95"])
        maps[self.by_class.classes] = self.by_class.ap.mean(1)
        return maps

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Everything that metrics.json says of an evaluation, with a row for each class that has
        objects; a metric that does not exist (no large objects, say) is null."""
        m = self.by_class
        values = m.precision, m.recall, m.ap[:, 0], m.ap.mean(1), self.coco_by_class[m.classes]
        rows = [
            {"name": names[c], "objects": n, **_plain(zip(COLUMNS, numbers, strict=True))}
            for c, n, *numbers in zip(m.classes, m.objects.tolist(), *values, strict=True)
        ]
        counts = {"images": len(self.indices), "objects": int(m.objects.sum())}
        everything = {**_plain(self.summary.items()), **counts}
        return {**everything, "best_confidence": m.best_confidence, "per_class": rows}


def _plain(numbers: Iterable[tuple[str, float]]) -> dict[str, float | None]:
    """Without NaN, which JSON does not have."""
    return {name: float(v) if math.isfinite(v) else None for name, v in numbers}


class DetectionMetrics(Metric):
    """YOLOv5's and COCO's metrics of a data set. The order of the images does not matter, a batch
    that is seen twice counts once, and several processes give what one gives.

    Attributes:
        sizes (k, 5) int64: an image's number in the data set, height, width, how many detections
            and labels it has · rows (n, 6): the detections of all images in this order ·
            labels (m, 7): likewise box, class, crowd, area · losses (b, 1 + parts) float64: the
            number of a batch's first image and its losses.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes, self.loss_names = num_classes, list[str]()
        for state in ("sizes", "rows", "labels", "losses"):
            self.add_state(state, [], dist_reduce_fx="cat")

    def update(
        self,
        predictions: Sequence[np.ndarray],
        targets: Sequence[Labels],
        indices: Sequence[int],
        losses: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a batch of images.

        Args:
            predictions: per image (n, 6) x1, y1, x2, y2 in pixels of the file, score, class, best
                first.
            targets: their labels.
            indices: their numbers in the data set.
            losses: the named parts of the batch's loss.
        """
        sizes = [
            (index, truth.height, truth.width, len(rows), len(truth.boxes))
            for index, rows, truth in zip(indices, predictions, targets, strict=True)
        ]
        labels = [np.column_stack((t.boxes, t.classes, t.crowd, t.area)) for t in targets]
        new = {
            "sizes": np.array(sizes, np.int64),
            "rows": np.concatenate(predictions),
            "labels": np.concatenate(labels).astype(np.float32),
        }
        if losses:
            self.loss_names = list(losses)
            new["losses"] = np.array([[indices[0], *map(float, losses.values())]])
        for state, values in new.items():
            getattr(self, state).append(torch.from_numpy(values).to(self.device))

    @property
    def seen(self) -> int:
        """Images that this process has added."""
        sizes: Any = self.sizes
        return sum(map(len, sizes))

    def compute(self) -> Result:
        sizes = _joined(self.sizes, 5)
        indices, first = np.unique(sizes[:, 0], return_index=True)
        image, rows = _of_images(first, sizes[:, 3], _joined(self.rows, 6))
        label_image, labels = _of_images(first, sizes[:, 4], _joined(self.labels, 7))
        counted = labels[:, 5] == 0  # without crowd regions
        of_image, true, size = label_image[counted], labels[counted], sizes[first, 1:3]
        boxes = np.minimum(true[:, :4].clip(0), np.tile(size[of_image, ::-1], 2))
        found = image, rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int32)
        objects = boxes.astype(np.float32), true[:, 4].astype(np.int64), true[:, 6]
        record = PredictionRecord(size, *found, of_image, *objects)
        by_class = class_metrics(
            record.true_positives(), record.score, record.kind, record.label_kind
        )
        coco, coco_by_class = coco_metrics(image, rows, label_image, labels, self.num_classes)
        summary = by_class.summary() | {f"coco/{name}": value for name, value in coco.items()}
        losses = _joined(self.losses, 1)
        _, first = np.unique(losses[:, 0], return_index=True)
        means = losses[first, 1:].sum(0) / max(len(first), 1)
        named = dict(zip(self.loss_names, means.tolist(), strict=False))
        return Result(summary, by_class, coco_by_class, indices.tolist(), record, named)


def _joined(state: Any, columns: int) -> np.ndarray:
    """A state of a process, or of all of them."""
    if not len(state):
        return np.zeros((0, columns), np.int64)
    return torch.cat(state if isinstance(state, list) else [state]).cpu().numpy()


def _of_images(
    images: np.ndarray, counts: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of these images, one after the other, and before them which of the images each is
    of. counts (k,): rows of each image that was added."""
    parts = np.split(values, counts.cumsum())
    place = np.arange(len(images), dtype=np.int32).repeat(counts[images])
    return place, np.concatenate([values[:0], *(parts[i] for i in images)])
