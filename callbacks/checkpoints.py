"""Checkpoints: the last epoch's and the best one's, written aside and moved into place."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn

from detector.files import write_atomically


class Checkpoints(Checkpoint):
    """`checkpoints/last.ckpt` after every epoch and `checkpoints/best.ckpt` by fitness, in the Trainer's default_root_dir.

    Not Lightning's ModelCheckpoint: that one writes its last checkpoint only when it writes a best one.

    Args:
        save_period: Keep `epoch<N>.ckpt` every so many epochs too; -1 is off.
    """

    def __init__(self, save_period: int = -1) -> None:
        self.save_period = save_period
        self.best_fitness = -1.0
        self.fitness: float | None = None  # of this epoch, once it was validated

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.fitness = float(trainer.callback_metrics["val/fitness"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Lightning calls this after all other callbacks, so their state is that of the finished epoch."""
        folder, epoch, fitness = Path(trainer.default_root_dir) / "checkpoints", trainer.current_epoch, self.fitness
        self.fitness = None
        if fitness is not None and fitness > self.best_fitness:
            self.best_fitness = fitness
            trainer.save_checkpoint(folder / "best.ckpt")
        if self.save_period > 0 and (epoch + 1) % self.save_period == 0:
            trainer.save_checkpoint(folder / f"epoch{epoch}.ckpt")
        trainer.save_checkpoint(folder / "last.ckpt")

    def state_dict(self) -> dict[str, Any]:
        return {"best_fitness": self.best_fitness}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_fitness = state_dict["best_fitness"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target, in the same folder, and moves: Lightning's own way passes through $TMPDIR and may copy."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))
