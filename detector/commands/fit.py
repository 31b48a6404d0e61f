"""The command `fit`."""

from pathlib import Path

import lightning as L

from boltbox.callbacks.guard import RollBack
from boltbox.detector.checkpoint.reader import newest_valid
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


def fit(
    trainer: L.Trainer,
    model: L.LightningModule,
    datamodule: L.LightningDataModule | None = None,
    ckpt_path: str | Path | None = None,
) -> None:
    """Train: `trainer.fit` of the same arguments, with the policy `roll_back` of
    boltbox.callbacks.Guard carried out.

    After a RollBack the same objects are fitted again from the newest valid checkpoint of the run
    folder (trainer.default_root_dir).

    Args:
        ckpt_path: Resume: last, best, a run folder or a checkpoint. last and best are those of the
            most recent fit, or of --run. A run folder continues from its last.ckpt, a checkpoint
            in a new run folder.

    Raises:
        Incident: Training cannot continue, or there were too many roll-backs.
        InputError: There is no checkpoint to go back to yet.
    """
    while True:
        try:
            trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
            return
        except RollBack as e:
            newest = newest_valid(Path(trainer.default_root_dir) / "checkpoints")
            if newest is None:
                raise InputError(f"{e}; there is no checkpoint to go back to") from None
            ckpt_path = newest[0]
            rank_zero_print(f"warning: {e}; resuming from {ckpt_path}")
