"""Validation, test and prediction of a Detector."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import lightning as L
import numpy as np
import torch
from torch import Tensor

from boltbox.detector.data.detection_batch import detection_batch
from boltbox.detector.data.inputs.sources import Image
from boltbox.detector.data.sample import Batch
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.evaluation.metrics import DetectionMetrics, Result
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.exported import Exported, format_of, load_exported, shape_for
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.loss import Loss
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.sharding import is_sharded
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.weights.torch_file import as_input_error
from boltbox.detector.weights.trained import DETECTOR, read_trained

# of a validation; a box may be a detection of several classes
VALIDATION = {"conf": 0.001, "iou": 0.6, "max_det": 300, "multi_label": True}


class EvaluationModule(L.LightningModule):
    """The part of a Detector that validates, tests and predicts.

    Attributes:
        network, loss: of the Detector.
        ema: the moving average of the network, once boltbox.callbacks.EMA is in charge.
        literal: see Detector.
        image_size: longer side of the input in pixels.
        knows_size: False: the first training batch tells it.
        class_maps: mAP50-95 of each class in the last validation.
        thresholds: of each class the confidence of the best F1 in that validation, if there was
            one: `predict(images, conf=detector.thresholds)`.
        result: of the last validation or test, on the first process.
        fitness: of this epoch, once it was validated.
        prediction: options of the Predictor of a validation or test.
        exported: an exported file that is evaluated in the network's place.
        ensemble: networks and exported files that predict too in a validation or test.
    """

    network: YOLOv5
    loss: Loss
    literal: bool

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.ema: YOLOv5 | None = None
        self.knows_size = False
        self.metrics = DetectionMetrics(num_classes)
        self.class_maps = [0.0] * num_classes
        self.thresholds: list[float] | None = None
        self.result: Result | None = None
        self.fitness: float | None = None
        self.predictor_options: dict[str, Any] = {}
        self.exported: Exported | None = None
        self.ensemble: list[YOLOv5 | Exported] = []
        self.predictor: Predictor | None = None  # of the validation or test in progress

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device | None = None) -> Self:
        """A trained detector in evaluation mode, ready for `predict`.

        Args:
            path: a checkpoint of ours (.ckpt; its moving average becomes the network), a run
                folder, which means its best, a YOLOv5 file (.pt), or an exported file, which
                predicts in the network's place. Nothing in it is executed.
            device: default: the first GPU, if there is one.

        Raises:
            InputError: no such file, or not a detector.
        """
        found = load_exported(path) if format_of(path) else read_trained(path)
        with as_input_error(path, DETECTOR):
            detector = cls(**found.arguments())
            if isinstance(found, Exported):
                detector.exported = found
            else:
                found.fill(detector.network, detector.names)
        detector.set_image_size(found.image_size)
        detector.thresholds = found.thresholds
        return detector.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()

    def predict(
        self, images: Image | Sequence[Image], **options: Any
    ) -> Detections | list[Detections]:
        """The objects in images, see `Predictor.predict`. Each call fuses a copy of the network:
        for many calls, load a Predictor.

        Args:
            options: of Predictor (conf, iou, ...) and of its method `predict` (tile_size, ...).
        """
        parameters = inspect.signature(Predictor.predict).parameters
        how = {name: options.pop(name) for name in parameters if name in options}
        return self.make_predictor(**options).predict(images, **how)

    @property
    def members(self) -> list[YOLOv5 | Exported]:
        """What predicts: the network, or its moving average if there is one, or the exported file
        that is evaluated; and the ensemble."""
        return [self.exported or self.evaluated, *self.ensemble]

    def make_predictor(self, **options: Any) -> Predictor:
        """A Predictor of the members."""
        own = {
            "image_size": self.image_size,
            "rounded": self.literal,
            "fuse": not is_sharded(self.evaluated),
        }
        return Predictor(self.members, self.names, **{**own, **options})

    def forward(self, images: Tensor) -> Tensor:
        """The decoded prediction, before suppression, in evaluation mode whatever the module's:
        statistics do not change. `predict` and `Predictor` give detections.

        Args:
            images: (B, 3, H, W) float32 RGB in 0..1, sides multiples of `max_stride`.

        Returns:
            (B, R, 5 + C) float32, a row a box: cx, cy, w, h in pixels of `images`, objectness,
            class scores, which are multiplied with it; of an exported file as it gives them.
        """
        if self.exported is not None:
            return self.exported(images)
        training = [module for module in self.evaluated.modules() if module.training]
        self.evaluated.eval()
        try:
            return self.evaluated.decode(self.evaluated(images))
        finally:
            for module in training:
                module.training = True

    @property  # type: ignore[misc]  # Lightning's can be set
    def example_input_array(self) -> Tensor:
        """(1, 3, H, W) of zeros, for Lightning's summary, graphs and `to_onnx`."""
        return torch.zeros(1, 3, self.image_size, self.image_size)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Of data of one's own a Batch; a tensor stays, the example is one."""
        return batch if isinstance(batch, Batch | Tensor) else self._own_batch(batch)

    def _own_batch(self, given: Any) -> Batch:
        trainer, seen = self.trainer, self.metrics.seen
        stride = max(self.max_stride, 32)
        batch = detection_batch(given, len(self.names), stride, not trainer.predicting)
        if trainer.training and not self.knows_size:
            size = trainer.strategy.broadcast(max(batch.images.shape[2:]))
            rank_zero_print(f"image size: {size} px, the longer side of the first batch")
            self.set_image_size(size)
            self.knows_size = True
        # numbers that no other image of the evaluation has, in any process
        numbers = [(seen + i) * trainer.world_size + trainer.global_rank for i in batch.indices]
        return batch._replace(indices=numbers)

    @property
    def names(self) -> list[str]:
        return self.hparams["names"]

    @property
    def max_stride(self) -> int:
        """Sides of the input are multiples of it."""
        return max(member.max_stride for member in self.members)

    def shape_for(self, image_size: int) -> tuple[int, int] | None:
        """See `boltbox.detector.inference.exported.shape_for`."""
        return shape_for(self.members, image_size)

    @property
    def evaluated(self) -> YOLOv5:
        """The network that is validated and predicts: the moving average if there is one."""
        return self.network if self.ema is None else self.ema

    def set_image_size(self, image_size: int) -> None:
        """Longer side of the input in pixels; the gains of the loss go by it."""
        self.image_size = round_up(image_size, self.max_stride)
        self.loss.set_image_size(self.image_size)

    def _start_evaluation(self) -> None:
        self.predictor = None
        self.metrics.reset()

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, list[np.ndarray]]:
        if self.predictor is None:
            # not earlier: with its first batch DDP brings the first process's batch norm statistics
            # to all
            fitting = self.trainer.state.fn == "fit"  # NaN is for boltbox.callbacks.Guard there
            options = {"finite": False} if fitting else self.predictor_options
            self.predictor = self.make_predictor(**VALIDATION | options)
        detections, raw = self.predictor.detect(batch)
        losses = {}
        if raw is not None:
            _, losses = self.loss(raw, batch.targets, self.evaluated.head)
        truths = [truth for truth in batch.truths if truth is not None]
        self.metrics.update(detections, truths, batch.indices, losses)
        return {"detections": detections}

    def _finish_evaluation(self) -> None:
        self.predictor = None  # a training needs its memory
        result = self.metrics.compute()
        self.metrics.reset()
        self.result = result if self.trainer.is_global_zero else None
        split = "test" if self.trainer.testing else "val"
        summary = {**result.losses, **result.summary}
        self.log_dict({f"{split}/{name}": value for name, value in summary.items()})
        if not self.trainer.sanity_checking:
            self.class_maps = result.class_maps().tolist()
            self.thresholds = result.by_class.thresholds(self.metrics.num_classes)
            self.fitness = result.summary["fitness"]

    def on_predict_start(self) -> None:
        self.predictor = self.make_predictor(**self.predictor_options)

    def predict_step(self, batch: Any, batch_idx: int) -> list[Detections]:
        """The objects in each image of data of one's own: (images, targets), or images alone."""
        assert self.predictor is not None
        if isinstance(batch, Tensor):
            batch = self._own_batch(batch)
            batch = batch._replace(images=batch.images.to(self.device))
        rows, _ = self.predictor.detect(batch)
        return [Detections.of(own, self.names) for own in rows]

    def on_predict_end(self) -> None:
        self.predictor = None

    test_step = validation_step
    on_validation_start = on_test_start = _start_evaluation
    on_validation_epoch_end = on_test_epoch_end = _finish_evaluation
