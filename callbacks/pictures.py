"""Pictures of a run: batches with their labels and predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L

from boltbox.detector.data.inputs.evaluation_input import whole
from boltbox.detector.data.sample import Batch
from boltbox.detector.report.drawing import Picture, draw_pictures, encoded, pictures_of
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.module import Detector

BATCHES = 3  # of the training that are drawn


class Pictures(L.Callback):
    """plots/train_batch0.jpg to 2 (the first batches, augmented), val_labels.jpg and
    val_predictions.jpg (the first batch of the last validation). Predictions below .25 are not
    drawn.

    Args:
        enabled: Off: none is drawn.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.shown: list[Picture] = []  # of the last validation; Dashboard shows them too

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Detector, batch: Batch, batch_idx: int
    ) -> None:
        iteration = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        if self.enabled and trainer.is_global_zero and iteration < BATCHES:
            name, pictures = f"train_batch{iteration}", pictures_of(batch)
            self._write(trainer, pl_module, name, pictures, "labels")

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
            self.shown = pictures_of(whole(batch), outputs["detections"])

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_fit_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """As for test."""
        if not self.enabled:
            return
        if self.shown:
            self._write(trainer, pl_module, "val_labels", self.shown, "labels")
            self._write(trainer, pl_module, "val_predictions", self.shown, "predictions")
        print_fact("pictures", _folder(trainer))

    def on_validation_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        if trainer.state.fn != "fit":
            self.on_fit_end(trainer, pl_module)

    on_test_end = on_fit_end  # type: ignore[assignment]

    def _write(
        self,
        trainer: L.Trainer,
        pl_module: Detector,
        name: str,
        pictures: Sequence[Picture],
        side: Literal["labels", "predictions"],
    ) -> None:
        path = _folder(trainer) / f"{name}.jpg"
        with not_fatal(path):
            write_atomically(path, encoded(draw_pictures(pictures, side, pl_module.names), 85))


def _folder(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "plots"
