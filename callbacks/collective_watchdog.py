"""The timeout of collectives, and an error message that shows where each process was."""

import contextlib
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist

from boltbox.detector.distributed.process_group import (
    STORE_TIMEOUT,
    LostContact,
    default_store,
    lost_contact,
)
from boltbox.detector.system.errors import InputError

# public in newer torches only
_set_timeout = getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)


class CollectiveWatchdog(L.Callback):
    """Each process writes its epoch and batch to the process group's store. When a collective times
    out, or another process is gone, the process ends with a sentence that shows where they all
    were, in place of an error of gloo or NCCL's.

    NCCL itself ends a process that has waited too long: its message names the rank and the
    operation, Python's fault handler shows the line.

    Args:
        timeout: Seconds that a process waits for the others, at most; default: torch's, 10 minutes
            on GPUs, else 30.

    Attributes:
        lost: the error, after a command that ended because another process was gone or timed out;
            see `end_together`.

    Raises:
        InputError: an option out of its range.
    """

    def __init__(self, timeout: float | None = None) -> None:
        if timeout is not None and timeout <= 0:
            raise InputError(f"ranks.timeout is {timeout:g}; it must be above 0 seconds")
        self.timeout = timeout
        self.lost: LostContact | None = None
        self._place = "the start"
        self._store: dist.Store | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """The timeout holds from here on, not for the start of the processes."""
        if not dist.is_initialized():
            return
        self._store = default_store()
        if self.timeout is not None:
            _set_timeout(timedelta(seconds=self.timeout))

    def _record(self, trainer: L.Trainer, place: str) -> None:
        self._place = (
            f"epoch {trainer.current_epoch}, {place}"
            if trainer.training or trainer.validating
            else place
        )
        if self._store is not None:
            self._store.set(_key(trainer.global_rank), self._place)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._record(trainer, f"training batch {batch_idx}")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._record(trainer, f"after training batch {batch_idx}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._record(trainer, "its end")

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._record(trainer, f"validation batch {batch_idx}")

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._record(trainer, f"after validation batch {batch_idx}")

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._record(trainer, f"test batch {batch_idx}")

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._record(trainer, f"after test batch {batch_idx}")

    def on_predict_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._record(trainer, f"predicted batch {batch_idx}")

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if not lost_contact(exception):
            return
        message = str(exception).strip().partition("\n")[0]
        late = "timed out" in message.lower()
        others = [
            f"process {rank} {self._last_place(rank)}"
            for rank in range(trainer.world_size)
            if rank != trainer.global_rank
        ]
        parts = [
            f"process {trainer.global_rank} of {trainer.world_size} "
            + ("waited in vain for the others" if late else "lost contact with the others")
            + f" at {self._place}{_operation(exception)}",
            *others[:8],
            f"and {len(others) - 8} more" if len(others) > 8 else "",
            "one that is only slow needs a larger --ranks.timeout"
            if late
            else "the one that left has said why, or was killed",
            f"torch's words: {message}",
        ]
        self.lost = LostContact("; ".join(part for part in parts if part))

    def _last_place(self, rank: int) -> str:
        """What another process last wrote to the store, as the end of a sentence."""
        if self._store is None:
            return "has not come"
        with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
            # only now: NCCL uses it for processes that may be slow
            self._store.set_timeout(STORE_TIMEOUT)
            if self._store.check([_key(rank)]):
                return f"was last at {self._store.get(_key(rank)).decode()}"
            return "was last at the start"
        return "does not answer"


def _key(rank: int) -> str:
    return f"place/{rank}"


def _operation(error: BaseException) -> str:
    """` (all_reduce, training_guard.py line 134)`: the function of torch.distributed, and where
    this project called it."""
    called, line = "", ""
    home = str(Path(__file__).parents[1])
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(home):
            line = f"{Path(frame.filename).name} line {frame.lineno}"
        if frame.filename.endswith("distributed_c10d.py"):
            called = called or frame.name
    found = ", ".join(part for part in (called, line) if part)
    return f" ({found})" if found else ""
