"""The recipe's states in a training checkpoint: its callbacks, every process's gradients, losses
and random generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from boltbox.detector.checkpoint.validators import (
    InvalidContent,
    anything,
    check_tensor,
    fields,
    instance_of,
    integer,
    join,
    kind_of,
    list_of,
    mapping_of,
    nullable,
    number,
)

COUNT = integer()


def _reason(value: Any, where: str) -> None:
    if not isinstance(value, int) or value not in [reason.value for reason in EarlyStoppingReason]:
        raise InvalidContent(f"{where} is {kind_of(value)}, which is no reason to stop")


def _scalar(value: Any, where: str) -> None:
    check_tensor(value, where)
    if value.numel() != 1:
        raise InvalidContent(f"{where} holds {value.numel()} numbers, not one")


def _losses(value: Any, where: str) -> None:
    """A LossSums."""
    fields({"names": list_of(instance_of(str)), "sums": check_tensor})(value, where)
    if value["sums"].shape != (len(value["names"]) + 1,):
        raise InvalidContent(f"{where} does not hold {len(value['names']) + 1} numbers")


RANDOM = fields(
    {"torch": check_tensor, "python": list_of(anything, 3), "numpy": list_of(anything, 5)},
    {"cuda": check_tensor},
)


def _random(value: Any, where: str) -> None:
    """Tried on generators that nobody uses; NumPy's does not look at the position, so we do."""
    RANDOM(value, where)
    try:
        torch.Generator().set_state(value["torch"])
        if "cuda" in value and torch.cuda.is_available():
            torch.Generator("cuda").set_state(value["cuda"])
        random.Random().setstate(value["python"])
        nullable(number)(value["python"][2], f"{where}.python.2")
        kind, keys, position, has_gauss, cached = value["numpy"]
        list_of(integer(0, 2**32 - 1), 624)(keys, f"{where}.numpy.1")
        integer(0, 624)(position, f"{where}.numpy.2")
        integer(0, 1)(has_gauss, f"{where}.numpy.3")
        number(cached, f"{where}.numpy.4")
        np.random.RandomState().set_state(
            (kind, np.array(keys, np.uint32), position, has_gauss, cached)
        )
    except (TypeError, ValueError, OverflowError, RuntimeError, LookupError) as e:
        raise InvalidContent(
            f"{where} is no state of a random generator ({type(e).__name__})"
        ) from None


def _fingerprint(value: Any, where: str) -> None:
    """See detector/data/fingerprint.py."""
    check_tensor(value, where)
    if value.dtype != torch.int32 or value.shape[1:] != (3,):
        raise InvalidContent(f"{where} is no table of three int32 an image")


DATA = fields(
    {
        "epoch_maps": list_of(number),
        "images_done": COUNT,
        "fingerprints": fields({"train": _fingerprint, "val": _fingerprint}),
    }
)


CALLBACKS = {  # by class name; the states of others' callbacks are their own matter
    "EMA": fields({"updates": COUNT}),
    "EarlyStop": fields(
        {"wait_count": COUNT, "stopped_epoch": COUNT, "best_score": _scalar, "patience": COUNT},
        {"stopping_reason": _reason, "stopping_reason_message": nullable(instance_of(str))},
    ),
    "Guard": fields({"roll_backs": COUNT, "lr0": number}),
    "Dashboard": fields({"best": mapping_of(number), "spent": mapping_of(COUNT)}),
    "Checkpoints": fields({"best_fitness": number}),
}


def check_callbacks(value: Any, where: str) -> None:
    mapping_of(mapping_of(anything, object))(value, where)
    for key, state in value.items():
        inner = CALLBACKS.get(key.partition("{")[0])
        if inner and state:
            inner(state, join(where, key))


PROCESS = fields(
    {"gradients": mapping_of(check_tensor), "epoch_losses": _losses, "random": _random}
)
RUN = fields(
    {},
    {
        "config": instance_of(str),
        "names": list_of(instance_of(str)),
        "loggers": mapping_of(nullable(instance_of(str))),
        "versions": mapping_of(anything),
    },
)
