"""Early stopping by fitness."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping

from boltbox.detector.system.ranges import NonNegativeInt
from boltbox.detector.system.rank_zero import amount, rank_zero_print


class EarlyStop(EarlyStopping):
    """Lightning's EarlyStopping on fitness: stops after `patience` validations without a strictly
    better one. In a run without validation, trainer.limit_val_batches 0, it never does.

    Args:
        patience: Validations without improvement before the end; 0: off.
    """

    def __init__(self, patience: NonNegativeInt = 100) -> None:
        super().__init__(
            monitor="val/fitness",
            mode="max",
            patience=patience if patience else 2**31,
            min_delta=0.0,
            strict=False,
        )

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """A new run counts from 0, whatever this callback has seen before."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self.wait_count = 0
            self.best_score = torch.tensor(-torch.inf)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.wait_count >= self.patience:
            rank_zero_print(
                f"early stop: no better one in {amount(self.patience, 'validation')}; resume with a"
                " higher early_stop.patience"
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A resumed run keeps the count, but not the patience, of the checkpoint."""
        super().load_state_dict(state_dict | {"patience": self.patience})
