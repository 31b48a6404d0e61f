"""The timeout of collectives, and an error message that shows where each process was."""

import contextlib
from datetime import timedelta
from typing import Any

import lightning as L
import torch.distributed as dist

from boltbox.detector.distributed.process_group import STORE_TIMEOUT, default_store, lost_contact
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import PositiveFloat

# public in newer torches only
_set_timeout = getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)


class Watchdog(L.Callback):
    """Each process writes its epoch and batch to the process group's store. When a collective times
    out, or another process is gone, the process ends with a sentence that shows where they all
    were, in place of an error of gloo or NCCL's.

    NCCL itself ends a process that has waited too long: its message names the rank and the
    operation, Python's fault handler shows the line.

    Args:
        timeout: Seconds that a process waits for the others, at most; default: torch's, 10 minutes
            on GPUs, else 30.

    Attributes:
        explanation: the error, after a command that ended because another process was gone or timed
            out; see `end_together`.
    """

    def __init__(self, timeout: PositiveFloat | None = None) -> None:
        self.timeout = timeout
        self.explanation: InputError | None = None
        self._place = "the start"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """The timeout holds from here on, not for the start of the processes."""
        if self.timeout is not None and dist.is_initialized():
            _set_timeout(timedelta(seconds=self.timeout))

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        stage = trainer.state.stage.value if trainer.state.stage else ""
        self._place = f"epoch {trainer.current_epoch}, {stage} batch {batch_idx}"
        if dist.is_initialized():
            default_store().set(_key(trainer.global_rank), self._place)

    on_validation_batch_start = on_test_batch_start = on_train_batch_start  # type: ignore[assignment]

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if not lost_contact(exception):
            return
        message = str(exception).strip().partition("\n")[0]
        late, rank = "timed out" in message.lower(), trainer.global_rank
        others = [
            f"process {other} {_last_place(other)}"
            for other in range(trainer.world_size)
            if other != rank
        ]
        found = "timed out waiting for" if late else "lost contact with"
        hint = (
            "one that is only slow needs a larger --watchdog.timeout"
            if late
            else "the one that left has printed why, or was killed"
        )
        self.explanation = InputError(
            f"process {rank} of {trainer.world_size} {found} the others at {self._place};"
            f" {'; '.join(others[:8])}; {hint}; torch: {message}"
        )


def _last_place(rank: int) -> str:
    """What another process last wrote to the store, as the end of a sentence."""
    with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
        store = default_store()
        store.set_timeout(STORE_TIMEOUT)  # only now: NCCL uses it for processes that may be slow
        known = store.check([_key(rank)])
        return f"was last at {store.get(_key(rank)).decode() if known else 'the start'}"
    return "does not answer"


def _key(rank: int) -> str:
    return f"place/{rank}"
