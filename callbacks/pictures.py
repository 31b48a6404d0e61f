"""Pictures of a run: batches with their labels and predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L

from boltbox.detector.data.sample import Batch
from boltbox.detector.report.drawing import BatchImage, draw_images, encode_jpeg, images_of
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.module import Detector

BATCHES = 3  # of a training that are drawn


class Pictures(L.Callback):
    """plots/train_batch0.jpg to 2 (the first batches, augmented), val_labels.jpg and
    val_predictions.jpg (the first batch of the last validation). Predictions below 0.25 are not
    drawn.

    Args:
        enabled: Off: none is drawn.

    Attributes:
        images: The first ones of the last validation, which Dashboard shows too.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.images: list[BatchImage] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        self.images = []  # of an earlier validation

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Detector, batch: Batch, batch_idx: int
    ) -> None:
        iteration = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        if self.enabled and trainer.is_global_zero and iteration < BATCHES:
            name = f"train_batch{iteration}"
            _write(trainer, name, images_of(batch), "labels", pl_module.names)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Detector,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        *_: Any,
    ) -> None:
        if trainer.is_global_zero and batch_idx == 0:
            self.images = images_of(batch, outputs["detections"])

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_fit_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """As for test."""
        if not self.enabled:
            return
        if self.images:
            names = pl_module.names
            _write(trainer, "val_labels", self.images, "labels", names)
            _write(trainer, "val_predictions", self.images, "predictions", names)
        print_fact("pictures", _folder(trainer))

    def on_validation_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if trainer.state.fn != "fit":
            self.on_fit_end(trainer, pl_module)

    on_test_end = on_fit_end  # type: ignore[assignment]


def _write(
    trainer: L.Trainer,
    name: str,
    images: Sequence[BatchImage],
    side: Literal["labels", "predictions"],
    names: Sequence[str],
) -> None:
    path = _folder(trainer) / f"{name}.jpg"
    with not_fatal(path):  # also if the font of the names cannot be read
        drawn = draw_images(images, side, names)
        write_atomically(path, encode_jpeg(drawn, 85))


def _folder(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "plots"
