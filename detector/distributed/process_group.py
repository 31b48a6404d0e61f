"""The processes of a training: they end together, and one reports for all."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

import boltbox

if TYPE_CHECKING:
    import lightning as L

GONE = re.compile(
    "timed? ?out|closed|by peer|not connected|broken pipe|refused|(read|write) error", re.IGNORECASE
)
PARENT = "BOLTBOX_PARENT"  # process id of the one that takes this one along


@contextlib.contextmanager
def end_together(trainer: L.Trainer) -> Iterator[None]:
    """A command of the Trainer, at whose end no process that was started for it is left.

    Raises:
        InputError: in place of a crash that a callback explains in one sentence, in its attribute
            `explanation`: boltbox.callbacks.Watchdog, Guard.
        SystemExit: another process failed after this one had finished.
    """
    try:
        yield
    except Exception:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for explanation in (getattr(callback, "explanation", None) for callback in callbacks):
            if explanation:
                raise explanation from None
        raise
    children = [
        p
        for p in getattr(trainer.strategy.launcher, "procs", [])
        if isinstance(p, subprocess.Popen)
    ]
    failed = max([abs(child.wait()) for child in children], default=0)
    if failed:
        raise SystemExit(failed)


def gather(value: Any) -> list[Any]:
    """The values of all processes, in order of their rank; all of them call it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def lost_contact(error: BaseException) -> bool:
    """Whether an error of torch.distributed means that another process is gone or timed out. gloo's
    are plain RuntimeErrors."""
    ours = isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)
    )
    return ours and GONE.search(str(error)) is not None


def child_environment(**more: str) -> dict[str, str]:
    """For a training that is to die with this process (`die_with_parent`). It has a run folder of
    its own, and imports the same boltbox, from any folder."""
    kept = {k: v for k, v in os.environ.items() if k != "BOLTBOX_RUN"}
    home = str(Path(boltbox.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return {**kept, PARENT: str(os.getpid()), "PYTHONPATH": paths, **more}


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone, if Lightning or torchrun has
    started it, for in a collective it would wait for ever, or a process that asks for it
    (`child_environment`). Others are left alone."""
    parent = os.environ.pop(PARENT, None)
    by_lightning = "LOCAL_RANK" in os.environ and "BOLTBOX_RUN" in os.environ
    if parent or by_lightning or "TORCHELASTIC_RUN_ID" in os.environ:
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
    if parent and os.getppid() != int(parent):  # it went before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)


def first_to_report(error: str) -> bool:
    """Whether this process is the one to print an error that several may have: the first that asks.
    Before there is a process group, which is before anything is opened, it is the first process of
    each machine."""
    if not dist.is_initialized():
        return os.environ.get("LOCAL_RANK", "0") == "0"
    with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
        store = dist.distributed_c10d._get_default_store()
        store.set_timeout(timedelta(seconds=5))  # another process may be gone
        return store.add(f"reported/{sha256(error.encode()).hexdigest()}", 1) == 1
    return True
