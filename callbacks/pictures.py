"""Pictures of a run: what the network sees, what it finds, how it went."""

import csv
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.trainer.states import TrainerFn

from detector.boxes import cxcywhn_to_xyxy
from detector.curves import plot_curves
from detector.data.sample import Batch
from detector.drawing import draw_boxes, enlarge, grid, write_image
from detector.files import not_fatal
from detector.module import Detector

MOST = 16  # images a picture
BATCHES = 3  # of the training that are drawn


class Pictures(L.Callback):
    """plots/train_batch0.jpg to 2 (the first batches as the network sees them), val_labels.jpg beside val_predictions.jpg (the
    last validation's first batch), curves.png. Predictions below `conf` are not drawn.

    Args:
        conf: Least confidence of a detection to draw.
    """

    def __init__(self, conf: float = 0.25) -> None:
        self.conf = conf
        self.shown: tuple[Batch, list[np.ndarray]] | None = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int) -> None:
        assert isinstance(pl_module, Detector)
        iteration = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        if trainer.is_global_zero and iteration < BATCHES:
            self._write(trainer, f"train_batch{iteration}", _pixels(batch), _labels(batch), pl_module.names)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        if trainer.is_global_zero and batch_idx == 0:
            self.shown = batch, outputs["detections"]

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        table = Path(trainer.default_root_dir) / "metrics.csv"
        if trainer.is_global_zero and table.is_file():
            self._evaluated(trainer, pl_module)
            checkpoint, plots = Path(trainer.default_root_dir) / "checkpoints" / "best.ckpt", _folder(trainer)
            with open(table, newline="") as file, not_fatal(plots / "curves.png"):
                plot_curves(list(csv.DictReader(file)), plots / "curves.png")
            print(f"checkpoint: {checkpoint}\nmetrics: {table}\npictures: {plots}")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING and trainer.is_global_zero:
            self._evaluated(trainer, pl_module)

    on_test_end = on_validation_end

    def _evaluated(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        if self.shown is None:
            return
        batch, found = self.shown
        kept = []
        for rows, frame in zip(found, batch.frames, strict=True):
            assert frame is not None
            sure = rows[rows[:, 4] > self.conf].copy()
            sure[:, :4] = sure[:, :4] * ((frame.gain_x, frame.gain_y) * 2) + (frame.pad_x, frame.pad_y) * 2
            kept.append(sure)
        self._write(trainer, "val_labels", _pixels(batch), _labels(batch), pl_module.names)
        self._write(trainer, "val_predictions", _pixels(batch), kept, pl_module.names)

    def _write(self, trainer: L.Trainer, name: str, images: np.ndarray, rows: list[np.ndarray], names: list[str]) -> None:
        drawn = [draw_boxes(*enlarge(image, r), names) for image, r in zip(images, rows[:MOST], strict=False)]
        path = _folder(trainer) / f"{name}.jpg"
        with not_fatal(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_image(path, grid(drawn))


def _folder(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "plots"


def _pixels(batch: Batch) -> np.ndarray:
    """(n, H, W, 3) uint8 RGB of the first images of a batch."""
    images = batch.images[:MOST].float().cpu().numpy().transpose(0, 2, 3, 1)
    return np.ascontiguousarray((images * 255).round().astype(np.uint8))


def _labels(batch: Batch) -> list[np.ndarray]:
    """Per image the labels as rows for `draw_boxes`."""
    targets, (height, width) = batch.targets.cpu().numpy(), batch.images.shape[2:]
    rows = []
    for i in range(len(batch.images)):
        own = targets[targets[:, 0] == i]
        rows.append(np.column_stack((cxcywhn_to_xyxy(own[:, 2:], width, height), np.full(len(own), np.nan), own[:, 1])))
    return rows
