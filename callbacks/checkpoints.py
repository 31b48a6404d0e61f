"""Checkpoints: the last epoch's and the best one's, written aside and moved into place."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from detector.files import write_atomically


class Checkpoints(ModelCheckpoint):
    """`checkpoints/last.ckpt` after every epoch and `checkpoints/best.ckpt` by fitness, in the Trainer's default_root_dir.

    Args:
        save_period: Keep `epoch<N>.ckpt` every so many epochs too; -1 is off.
    """

    def __init__(self, save_period: int = -1) -> None:
        super().__init__(
            monitor="val/fitness",
            mode="max",
            save_top_k=1,
            filename="best",
            auto_insert_metric_name=False,
            enable_version_counter=False,
            save_on_train_epoch_end=True,
            save_last=True,
        )
        self.save_period = save_period

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        epoch = trainer.current_epoch
        if self.save_period > 0 and (epoch + 1) % self.save_period == 0:
            assert self.dirpath is not None
            trainer.save_checkpoint(str(Path(self.dirpath) / f"epoch{epoch}.ckpt"))


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target, in the same folder, and moves: Lightning's own way passes through $TMPDIR and may copy."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))
