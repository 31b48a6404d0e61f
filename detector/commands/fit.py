"""The command `fit`."""

from pathlib import Path

import lightning as L


def fit(
    trainer: L.Trainer,
    model: L.LightningModule,
    datamodule: L.LightningDataModule | None = None,
    ckpt_path: str | Path | None = None,
) -> None:
    """Train: `trainer.fit` of the same arguments.

    Args:
        ckpt_path: Resume: last, best, a run folder or a checkpoint. last and best are those of the
            most recent fit, or of --run. A run folder continues from its last.ckpt, a checkpoint
            in a new run folder.
    """
    trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
