"""Pictures of a run: batches with their labels and predictions, curves."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.trainer.states import TrainerFn

from boltbox.detector.data.inputs.evaluation_input import whole
from boltbox.detector.data.sample import Batch
from boltbox.detector.report.charts import draw_curves
from boltbox.detector.report.drawing import (
    draw_boxes,
    enlarge,
    grid,
    label_rows,
    pixels,
    prediction_rows,
    write_image,
)
from boltbox.detector.system.atomic_file import not_fatal
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.module import Detector

MOST = 16  # images a picture
BATCHES = 3  # of the training that are drawn


class Pictures(L.Callback):
    """plots/train_batch0.jpg to 2 (the first batches, augmented), val_labels.jpg and
    val_predictions.jpg (the first batch of the last validation), curves.png. Predictions below
    .25 are not drawn.

    Args:
        enabled: Off: none is drawn, nor AutoAnchor's anchors.png.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.shown: tuple[Batch, list[np.ndarray]] | None = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Detector)
        iteration = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        if self.enabled and trainer.is_global_zero and iteration < BATCHES:
            self._write(
                trainer,
                f"train_batch{iteration}",
                pixels(batch, MOST),
                label_rows(batch),
                pl_module.names,
            )

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        *_: Any,
    ) -> None:
        if self.enabled and trainer.is_global_zero and batch_idx == 0:
            self.shown = whole(batch), outputs["detections"]

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        rows = read_table(Path(trainer.default_root_dir) / "metrics.csv")
        if self.enabled and trainer.is_global_zero and rows:
            self._evaluated(trainer, pl_module)
            path = _folder(trainer) / "curves.png"
            with not_fatal(path):
                draw_curves(rows, path)
            rank_zero_print(f"pictures: {path.parent}")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING and trainer.is_global_zero:
            self._evaluated(trainer, pl_module)

    on_test_end = on_validation_end

    def _evaluated(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        if self.shown is None:
            return
        batch, found = self.shown
        self._write(trainer, "val_labels", pixels(batch, MOST), label_rows(batch), pl_module.names)
        self._write(
            trainer,
            "val_predictions",
            pixels(batch, MOST),
            prediction_rows(batch, found),
            pl_module.names,
        )

    def _write(
        self,
        trainer: L.Trainer,
        name: str,
        images: np.ndarray,
        rows: list[np.ndarray],
        names: list[str],
    ) -> None:
        drawn = [
            draw_boxes(*enlarge(image, r), names)
            for image, r in zip(images, rows[:MOST], strict=False)
        ]
        path = _folder(trainer) / f"{name}.jpg"
        with not_fatal(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_image(path, grid(drawn))


def _folder(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "plots"


def are_drawn(trainer: L.Trainer) -> bool:
    """Whether a training's pictures are wanted."""
    return all(c.enabled for c in trainer.callbacks if isinstance(c, Pictures))  # type: ignore[attr-defined]
