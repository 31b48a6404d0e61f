"""The training data of a Trainer: a DetectionData, or the user's own."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print


def data_of(trainer: L.Trainer, skipped: str = "") -> DetectionData | None:
    """The data module of a Trainer; None if the data are the user's own.

    Args:
        trainer: Of any command.
        skipped: What is left out for data of the user's own; it is printed.
    """
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, DetectionData):
        return data
    if skipped:
        rank_zero_print(f"data of your own: {skipped}")
    return None


def check_names(data: Any, names: list[str]) -> None:
    """Raises InputError if the data have other classes than these, those of a Detector."""
    if list(getattr(data, "names", names)) != names:
        raise InputError(
            f"the Detector knows the classes {names}, its data have {data.names}: give it"
            " data.names"
        )


def global_batch_size(trainer: L.Trainer, default: int) -> int:
    """Images per batch, over all devices, of the user's own training data; the default, if it is
    not known.

    Raises:
        InputError: The data have no length, or are not divided among the devices.
    """
    trainer.fit_loop.setup_data()
    loader: Any = trainer.train_dataloader
    if trainer.num_training_batches == math.inf:
        raise InputError(
            "data of your own: the training data have no length; give the Trainer"
            " limit_train_batches=N, the batches of an epoch"
        )
    sampler: Any = getattr(loader, "batch_sampler", None)
    order = getattr(sampler, "sampler", None) if type(sampler) is BatchSampler else None
    if trainer.world_size > 1 and isinstance(order, RandomSampler | SequentialSampler):
        raise InputError(
            "data of your own: each of the devices would train on all of them; give the Trainer"
            " use_distributed_sampler=True"
        )
    batch_size = getattr(sampler, "batch_size", None)
    return batch_size * trainer.world_size if batch_size else default
