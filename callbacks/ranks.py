"""The processes that train together: how long one waits for the others, and what it says when they do not come."""

import contextlib
import os
import re
import signal
import subprocess
import traceback
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from detector import parent
from detector.errors import InputError

_set_timeout = getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)  # public in newer torches only
ANSWER = timedelta(seconds=5)  # within which the store must say where the others are


class LostContact(InputError):
    """Another process is gone, or did not come in time. The sentence says which process waited, where, and where the others
    were."""


class Ranks(L.Callback):
    """Each process tells the process group's store where it is. When one has waited in vain, or another is gone, it ends with a
    sentence that says where they all were, in place of an error of gloo or NCCL's.

    NCCL itself ends a process that has waited too long: its message names the rank and the operation, Python's fault handler
    shows the line.

    Args:
        timeout: Seconds that a process waits for the others, at most; default: torch's, 10 minutes on GPUs, else 30.

    Attributes:
        lost: after a command that ended for want of the others.

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

    @contextlib.contextmanager
    def together(self, trainer: L.Trainer) -> Iterator[None]:
        """A command of the Trainer: in the end no process that was started for it is left.

        Raises:
            LostContact: in place of the error that gloo or NCCL had raised.
            SystemExit: another process failed after this one had done its part.
        """
        try:
            yield
        except Exception:
            if self.lost:
                raise self.lost from None
            raise
        children = [p for p in getattr(trainer.strategy.launcher, "procs", []) if isinstance(p, subprocess.Popen)]
        failed = max([abs(child.wait()) for child in children], default=0)
        if failed:
            raise SystemExit(failed)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """The limit holds from here on: how long the processes take to start is no matter of hanging."""
        if not dist.is_initialized():
            return
        self._store = _default_store()
        if self.timeout is not None:
            _set_timeout(timedelta(seconds=self.timeout))

    def _be(self, trainer: L.Trainer, place: str) -> None:
        self._place = f"epoch {trainer.current_epoch}, {place}" if trainer.training or trainer.validating else place
        if self._store is not None:
            self._store.set(_key(trainer.global_rank), self._place)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._be(trainer, f"training batch {batch_idx}")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._be(trainer, f"after training batch {batch_idx}")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._be(trainer, "its end")

    def on_validation_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        self._be(trainer, f"validation batch {batch_idx}")

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._be(trainer, f"after validation batch {batch_idx}")

    def on_test_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        self._be(trainer, f"test batch {batch_idx}")

    def on_test_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        self._be(trainer, f"after test batch {batch_idx}")

    def on_predict_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        self._be(trainer, f"predicted batch {batch_idx}")

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if not lost_contact(exception):
            return
        words = str(exception).strip().partition("\n")[0]
        late = "timed out" in words.lower()
        others = [f"process {rank} {self._told(rank)}" for rank in range(trainer.world_size) if rank != trainer.global_rank]
        parts = [
            f"process {trainer.global_rank} of {trainer.world_size} "
            + ("waited in vain for the others" if late else "lost contact with the others")
            + f" at {self._place}{_operation(exception)}",
            *others[:8],
            f"and {len(others) - 8} more" if len(others) > 8 else "",
            "one that is only slow needs a larger --ranks.timeout" if late else "the one that left has said why, or was killed",
            f"torch's words: {words}",
        ]
        self.lost = LostContact("; ".join(part for part in parts if part))

    def _told(self, rank: int) -> str:
        """Where another process was when it last said so."""
        if self._store is None:
            return "has not come"
        with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
            self._store.set_timeout(ANSWER)  # only now: NCCL waits by it for processes that may be slow
            if self._store.check([_key(rank)]):
                return f"was last at {self._store.get(_key(rank)).decode()}"
            return "was last at the start"
        return "does not answer"


def lost_contact(error: BaseException) -> bool:
    """Whether an error says that another process is gone or did not come in time. gloo's are plain RuntimeErrors."""
    ours = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    return ours and bool(re.search("timed? ?out|by peer|broken pipe|refused|(read|write) error", str(error), re.IGNORECASE))


def die_with_parent() -> None:
    """A process that Lightning or torchrun has started is killed when the one that started it is gone: in a collective it would
    wait for ever. So is one whose starter asks for it (`detector.parent`). Others are left alone."""
    parent.die_with_parent()
    if "TORCHELASTIC_RUN_ID" in os.environ or ("LOCAL_RANK" in os.environ and "BOLTBOX_RUN" in os.environ):
        _prctl_pr_set_pdeathsig(signal.SIGKILL)


def first_to_say(error: str) -> bool:
    """Whether no other process has claimed to print this error. Before there is a process group, which is before anything is
    opened, the first process of each machine says it."""
    if not dist.is_initialized():
        return os.environ.get("LOCAL_RANK", "0") == "0"
    with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
        store = _default_store()
        store.set_timeout(ANSWER)
        return store.add(f"said/{sha256(error.encode()).hexdigest()}", 1) == 1
    return True


def _default_store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def _key(rank: int) -> str:
    return f"place/{rank}"


def _operation(error: BaseException) -> str:
    """` (all_reduce, flight_recorder.py line 134)`: what of torch.distributed was called, and from where in this project."""
    called, line = "", ""
    home = str(Path(__file__).parents[1])
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith((f"{home}/detector", f"{home}/callbacks")):
            line = f"{Path(frame.filename).name} line {frame.lineno}"
        if frame.filename.endswith("distributed_c10d.py"):
            called = called or frame.name
    found = ", ".join(part for part in (called, line) if part)
    return f" ({found})" if found else ""
