"""Validation and test: what predicts, the metrics, and their last results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import numpy as np
from torch import Tensor, nn

from boltbox.detector.data.inputs.tiles import Tiles
from boltbox.detector.data.sample import Batch
from boltbox.detector.evaluation.metrics import DetectionMetrics, Result
from boltbox.detector.inference.exported import Exported
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.head import Head
from boltbox.detector.model.loss import Loss
from boltbox.detector.model.network import YOLOv5

# of a validation; a box may be a detection of several classes
VALIDATION = {"conf": 0.001, "iou": 0.6, "max_det": 300, "multi_label": True}


class Evaluation(nn.Module):
    """Validates and tests the network of a Detector.

    Attributes:
        metrics: What the validation in progress has collected.
        whole: The same without tiles, in a fit with tiles.
        exported: An exported file that is evaluated instead of the network.
        ensemble: Networks and exported files that predict together with it.
        predictor_options: Options of the Predictor of `validate`, `test` and `trainer.predict`.
        result: Of the last validation or test, on the first process.
        fitness: Of this epoch; None until it is validated.
        class_maps: mAP50-95 of each class in the last validation.
        thresholds: The confidence of the best F1 of each class in that validation:
            `predict(images, conf=detector.evaluation.thresholds)`.
        tiles: Of the training; `predict` uses them too.

    Args:
        num_classes: Number of classes.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.metrics = DetectionMetrics(num_classes)
        self.whole = DetectionMetrics(num_classes)
        self.exported: Exported | None = None
        self.ensemble: Sequence[YOLOv5 | Exported] = ()
        self.predictor_options: dict[str, Any] = {}
        self.result: Result | None = None
        self.fitness: float | None = None
        self.class_maps = [0.0] * num_classes
        self.thresholds: list[float] | None = None
        self.tiles: Tiles | None = None
        self._step_options = VALIDATION
        self._predictor: Predictor | None = None
        self._in_fit = False

    def configure(
        self, ensemble: Sequence[YOLOv5 | Exported] = (), **predictor_options: Any
    ) -> None:
        """Choose what predicts in validations outside of a fit.

        Args:
            ensemble: Networks and exported files that predict together with the network.
            predictor_options: Options of Predictor, like conf.
        """
        self.ensemble = ensemble
        self.predictor_options = predictor_options

    def start(self, trainer: L.Trainer) -> None:
        """Before the first batch. In a fit, predictions that are not finite are left to
        boltbox.callbacks.Guard, and `predictor_options` do not count."""
        self._in_fit = trainer.state.fn == "fit"
        options = {"finite": False} if self._in_fit else self.predictor_options
        self._step_options = VALIDATION | options
        self._predictor = None
        self.result = None  # its detections need memory
        self.metrics.reset()
        self.whole.reset()

    def step(
        self, batch: Batch, make_predictor: Callable[..., Predictor], loss: Loss, head: Head
    ) -> list[np.ndarray]:
        """Evaluate a batch.

        Args:
            batch: On the device.
            make_predictor: Makes a Predictor of the network, with these options.
            loss: Its named parts are averaged.
            head: Of the network.

        Returns:
            The detections of each image, (n, 6): see `Predictor.detect`.
        """
        if self._predictor is None:
            # not in `start`: with the first batch DDP gives all processes the batch norm statistics
            # of the first one
            self._predictor = make_predictor(**self._step_options)
        detections, raw = self._predictor.detect(batch)
        parts: Mapping[str, Tensor] = {}
        if raw is not None:
            _, parts = loss(raw, batch.targets, head)
        truths = [truth for truth in batch.truths if truth is not None]
        self.metrics.update(detections, truths, batch.indices, parts)
        if batch.windows is not None and self._in_fit:
            detections_in_whole, _ = self._predictor.detect(batch._replace(windows=None))
            self.whole.update(detections_in_whole, truths, batch.indices)
        return detections

    def finish(self, trainer: L.Trainer) -> dict[str, float]:
        """After the last batch: keep the results, which the first process computes.

        Returns:
            Losses and metrics by the name under which they are logged.
        """
        self._predictor = None  # a training needs its memory
        self.metrics.gather()
        self.whole.gather()
        results: Any = None
        if trainer.is_global_zero:
            result = self.metrics.compute()
            self.result = result
            thresholds = result.by_class.thresholds(self.metrics.num_classes)
            values = result.losses | result.summary
            if self.whole.seen:
                whole = self.whole.compute().summary
                values |= {f"whole/{name}": whole[name] for name in ("mAP50", "mAP50-95")}
            results = (values, result.class_maps().tolist(), thresholds)
        self.metrics.reset()
        self.whole.reset()
        values, class_maps, thresholds = trainer.strategy.broadcast(results)
        if not trainer.sanity_checking:
            self.class_maps = class_maps
            self.thresholds = thresholds
            self.fitness = values["fitness"]
        split = "test" if trainer.testing else "val"
        return {f"{split}/{name}": value for name, value in values.items()}

    def results(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "class_maps": self.class_maps,
            "thresholds": self.thresholds,
            "fitness": self.fitness,
            "tiles": list(self.tiles) if self.tiles else None,
        }

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue with the `results` of a checkpoint."""
        self.class_maps = checkpoint.get("class_maps", self.class_maps)
        self.thresholds = checkpoint.get("thresholds")


@contextmanager
def in_evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Within it all layers are in evaluation mode; afterwards each is in its own again."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
