"""A validation or test: each process collects what it saw, the first one computes the figures, all
are told them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from boltbox.detector.data.sample import Batch
from boltbox.detector.evaluation.metrics import DetectionMetrics, Result
from boltbox.detector.model.loss_sums import LossSums


class Figures(NamedTuple):
    """summary: metrics by name · class_maps: mAP50-95 of each class · losses: over the batches of
    all processes · result: what all this is from, on the first process."""

    summary: dict[str, float]
    class_maps: list[float]
    losses: LossSums
    result: Result | None


class Evaluation:
    """Of a detector with so many classes, from `start` by `add` for each batch to `finish`."""

    def __init__(self, num_classes: int) -> None:
        self.metrics = DetectionMetrics(num_classes)
        self.start()

    def start(self) -> None:
        self.metrics.reset()
        self.losses = LossSums.empty(dtype=torch.double)

    def add(
        self, batch: Batch, detections: Sequence[np.ndarray], parts: Mapping[str, Tensor] | None
    ) -> None:
        """Detections as of `Detector.predict_batch`; parts: of the batch's loss, None if it does
        not count."""
        if parts is not None:
            self.losses = self.losses.add(
                {name: part.double().cpu() for name, part in parts.items()}
            )
        for index, truth, found in zip(batch.indices, batch.truths, detections, strict=True):
            assert truth is not None
            self.metrics.update(index, found, truth)

    def finish(self, strategy: Strategy) -> Figures:
        """The figures, the same in every process, each of which calls this."""
        self.metrics.gather()
        result = self.metrics.compute() if strategy.is_global_zero else None
        self.metrics.reset()
        payload = result and (
            result.summary,
            result.class_maps(self.metrics.num_classes).tolist(),
            self.losses.names,
        )
        summary, class_maps, names = strategy.broadcast(payload)  # type: ignore[misc]
        return Figures(summary, class_maps, self._losses_of_all(strategy, names), result)

    def _losses_of_all(self, strategy: Strategy, names: tuple[str, ...]) -> LossSums:
        """Lightning's own mean rounds the number of batches a process down to a whole one."""
        if getattr(strategy, "world_size", 1) == 1:
            return self.losses
        # none but padding batches
        own = self.losses if self.losses.names else LossSums.empty(names, torch.double)
        return LossSums(
            names, strategy.reduce(own.sums.to(strategy.root_device), reduce_op="sum").cpu()
        )
