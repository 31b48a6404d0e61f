"""Training with roll-backs: after a non-finite loss or gradient once more, from the last
checkpoint."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L

from boltbox.detector.checkpoint.atomic_io import AtomicCheckpointIO
from boltbox.detector.checkpoint.file import newest_intact
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.incident import Incident, RollBack


@runtime_checkable
class Guard(Protocol):
    """A callback that explains a crash of the fit in one sentence:
    boltbox.callbacks.TrainingGuard."""

    incident: Incident | None


def fit(
    trainer: L.Trainer,
    model: L.LightningModule,
    datamodule: L.LightningDataModule | None = None,
    ckpt_path: str | Path | None = None,
    weights_only: bool | None = None,
) -> None:
    """Train: `trainer.fit` of the same arguments, with the policy `roll_back` of
    boltbox.callbacks.TrainingGuard carried out.

    After a RollBack the same objects are fitted again from the newest intact checkpoint of the run
    folder (trainer.default_root_dir); the guard has counted the roll-back and lowers the learning
    rate. Without that policy it is plain `trainer.fit`, whose crashes are explained by the guard
    where it can.

    Args:
        ckpt_path: Continue the training from this checkpoint (last, best or a file).
        weights_only: As in Lightning's Trainer.fit.

    Raises:
        Incident: training cannot go on, or there were too many roll-backs.
        InputError: there is no checkpoint to go back to yet.
    """
    options: dict[str, Any] = {
        "datamodule": datamodule,
        "ckpt_path": ckpt_path,
        "weights_only": weights_only,
    }
    while True:
        try:
            return trainer.fit(model, **options)
        except RollBack as e:
            checkpoint, _ = newest_intact(
                Path(trainer.default_root_dir) / "checkpoints", type(model)
            )
            if checkpoint is None:
                raise InputError(f"{e}; there is no checkpoint to go back to") from None
            rank_zero_print(f"warning: {e}; going on from {checkpoint.path}")
            options["ckpt_path"] = str(checkpoint.path)
            if isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO):
                trainer.strategy.checkpoint_io.preloaded = checkpoint
            del checkpoint
        except Exception:
            guards = [c for c in trainer.callbacks if isinstance(c, Guard)]  # type: ignore[attr-defined]
            incident = next((guard.incident for guard in guards if guard.incident), None)
            if incident:
                raise incident from None
            raise
