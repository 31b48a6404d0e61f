"""How good detections are: what an epoch collects, and the metrics of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from boltbox.detector.data.sample import Labels
from boltbox.detector.evaluation.class_metrics import (
    IOU_THRESHOLDS,
    ClassMetrics,
    class_metrics,
    match,
)
from boltbox.detector.evaluation.coco import coco_metrics
from boltbox.detector.evaluation.confusion import Confusion, confused_pairs
from boltbox.detector.model.boxes import clip_xyxy


@dataclass
class Result:
    """An epoch's metrics: `summary` by name, `by_class`, `coco_by_class` (C,), `confusion`; and
    what they were computed from: detections and labels by image, see `DetectionMetrics.update`."""

    summary: dict[str, float]
    by_class: ClassMetrics
    coco_by_class: np.ndarray
    confusion: Confusion
    images: int
    seen: dict[int, tuple[np.ndarray, Labels]] = field(default_factory=dict)

    def class_maps(self, num_classes: int) -> np.ndarray:
        """(C,) mAP50-95 of each class; classes without objects get the mean, as in YOLOv5."""
        maps = np.full(num_classes, self.summary["mAP50-95"])
        maps[self.by_class.classes] = self.by_class.ap.mean(1)
        return maps


class DetectionMetrics(Metric):
    """YOLOv5's and COCO's metrics of a data set. The order of the images does not matter, one that
    is seen twice counts once, and several processes give what one gives.

    Attributes:
        sizes (k, 5) int64: an image's number in the data set, height, width, how many detections
            and labels it has · rows (n, 6): the detections of all images in this order ·
            labels (m, 7): likewise box, class, crowd, area.
    """

    sizes: list[Tensor] | Tensor
    rows: list[Tensor] | Tensor
    labels: list[Tensor] | Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        for state in ("sizes", "rows", "labels"):
            self.add_state(state, [], dist_reduce_fx="cat")

    def update(
        self, predictions: Sequence[np.ndarray], targets: Sequence[Labels], indices: Sequence[int]
    ) -> None:
        """Add images.

        Args:
            predictions: per image (n, 6) x1, y1, x2, y2 in pixels of the file, score, class, best
                first.
            targets: their labels.
            indices: their numbers in the data set.
        """
        sizes = [
            (index, truth.height, truth.width, len(rows), len(truth.boxes))
            for index, rows, truth in zip(indices, predictions, targets, strict=True)
        ]
        labels = [
            np.column_stack((t.boxes, t.classes, t.crowd, t.area)).astype(np.float32)
            for t in targets
        ]
        new = np.array(sizes, np.int64), np.concatenate(predictions), np.concatenate(labels)
        for state, values in zip((self.sizes, self.rows, self.labels), new, strict=True):
            assert isinstance(state, list)
            state.append(torch.from_numpy(values).to(self.device))

    def images(self) -> dict[int, tuple[np.ndarray, Labels]]:
        """Detections and labels by image number, in ascending order."""
        if not len(self.sizes):
            return {}
        sizes, rows, labels = (
            torch.cat(state if isinstance(state, list) else [state]).cpu().numpy()
            for state in (self.sizes, self.rows, self.labels)
        )
        own_rows = np.split(rows, sizes[:-1, 3].cumsum())
        own_labels = np.split(labels, sizes[:-1, 4].cumsum())
        found = {
            int(index): (r, Labels.of(t[:, :4], t[:, 4], height, width, None, t[:, 5], t[:, 6]))
            for (index, height, width, _, _), r, t in zip(
                sizes.tolist(), own_rows, own_labels, strict=True
            )
        }
        return dict(sorted(found.items()))

    def compute(self) -> Result:
        seen = self.images()
        detections, truths = [rows for rows, _ in seen.values()], [t for _, t in seen.values()]
        pairs, matched = [], [np.zeros((0, len(IOU_THRESHOLDS)), bool)]
        for found, truth in seen.values():
            counted = truth.keep(~truth.crowd)
            true_boxes = clip_xyxy(counted.boxes, truth.width, truth.height)
            matched.append(match(found[:, :4], found[:, 5], true_boxes, counted.classes))
            columns = found[:, :4], found[:, 4], found[:, 5]
            pairs.append(confused_pairs(*columns, true_boxes, counted.classes, self.num_classes))
        rows = np.concatenate([np.zeros((0, 6), np.float32), *detections])
        none = np.zeros(0, np.int64)
        true_classes = np.concatenate([none, *(t.classes[~t.crowd] for t in truths)])
        by_class = class_metrics(np.concatenate(matched), rows[:, 4], rows[:, 5], true_classes)
        coco, coco_by_class = coco_metrics(detections, truths, self.num_classes)
        summary = by_class.summary() | {f"coco/{name}": value for name, value in coco.items()}
        confusion = Confusion.of(pairs, self.num_classes)
        return Result(summary, by_class, coco_by_class, confusion, len(seen), seen)
