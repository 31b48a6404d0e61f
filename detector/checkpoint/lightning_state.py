"""The states of Lightning's own parts in a training checkpoint: version, loops, optimizers, loss
scaler."""

from __future__ import annotations

from typing import Any

from packaging.version import InvalidVersion, Version
from torch import Tensor

from boltbox.detector.checkpoint.validators import (
    InvalidContent,
    anything,
    check_map,
    check_tensor,
    fields,
    instance_of,
    integer,
    join,
    list_of,
    mapping_of,
    nullable,
    number,
)

OLDEST = Version("2.0")  # of Lightning; older ones kept their loops in another way


def check_version(value: Any, where: str) -> None:
    try:
        good = isinstance(value, str) and Version(value[:100]) >= OLDEST
    except InvalidVersion:
        good = False
    if not good:
        raise InvalidContent(f"{where} is not that of a Lightning since {OLDEST}")


COUNT = integer()
COUNTS = mapping_of(COUNT)
READY = fields({"ready": COUNT, "completed": COUNT}, {"started": COUNT, "processed": COUNT})
PROGRESS = fields({"total": READY, "current": READY}, {"is_last_batch": instance_of(bool)})
OPTIMIZER_PROGRESS = fields({"optimizer": fields({"step": PROGRESS, "zero_grad": PROGRESS})})
LOOP_STATE = fields({}, {"_batches_that_stepped": COUNT, "combined_loader": list_of(anything)})


def _loop(value: Any, where: str) -> None:
    """Lightning names the parts by their paths: `epoch_loop.batch_progress`."""
    check_map(value, where)
    if where.endswith("fit_loop"):
        FIT(value, where)
    for key, part in value.items():
        name = key.rpartition(".")[2] if isinstance(key, str) else ""
        inner = (
            OPTIMIZER_PROGRESS
            if name == "optim_progress"
            else BATCHES
            if name == "batch_progress" and "predict" not in where
            else PROGRESS
            if name.endswith("progress")
            else LOOP_STATE
        )
        inner(part, join(where, key))


BATCHES = fields({"total": READY, "current": READY, "is_last_batch": instance_of(bool)})
FIT = fields({"epoch_progress": PROGRESS, "epoch_loop.batch_progress": BATCHES})
LOOPS = fields(dict.fromkeys(("fit_loop", "validate_loop", "test_loop", "predict_loop"), _loop))
SCALER = fields(
    {
        "scale": number,
        "growth_factor": number,
        "backoff_factor": number,
        "growth_interval": COUNT,
        "_growth_tracker": COUNT,
    }
)
OPTIMIZER = fields(
    {},
    {
        "state": mapping_of(
            mapping_of(
                lambda v, where: (
                    check_tensor(v, where) if isinstance(v, Tensor) else nullable(number)(v, where)
                )
            ),
            int,
        ),
        "param_groups": list_of(fields({"params": list_of(COUNT)})),
    },
)
