"""The processes of a training: how they end together, and what one says for all."""

import contextlib
import os
import re
import signal
from datetime import timedelta
from hashlib import sha256

import torch.distributed as dist
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from detector.system import parent
from detector.system.errors import InputError

ANSWER = timedelta(seconds=5)  # within which the store must say where the others are


class LostContact(InputError):
    """Another process is gone, or did not come in time. The sentence says which process waited, where, and where the others
    were."""


def lost_contact(error: BaseException) -> bool:
    """Whether an error says that another process is gone or did not come in time. gloo's are plain RuntimeErrors."""
    ours = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    return ours and bool(re.search("timed? ?out|by peer|broken pipe|refused|(read|write) error", str(error), re.IGNORECASE))


def die_with_parent() -> None:
    """A process that Lightning or torchrun has started is killed when the one that started it is gone: in a collective it would
    wait for ever. So is one whose starter asks for it (`detector.system.parent`). Others are left alone."""
    parent.die_with_parent()
    if "TORCHELASTIC_RUN_ID" in os.environ or ("LOCAL_RANK" in os.environ and "BOLTBOX_RUN" in os.environ):
        _prctl_pr_set_pdeathsig(signal.SIGKILL)


def first_to_say(error: str) -> bool:
    """Whether no other process has claimed to print this error. Before there is a process group, which is before anything is
    opened, the first process of each machine says it."""
    if not dist.is_initialized():
        return os.environ.get("LOCAL_RANK", "0") == "0"
    with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
        store = default_store()
        store.set_timeout(ANSWER)
        return store.add(f"said/{sha256(error.encode()).hexdigest()}", 1) == 1
    return True


def default_store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()
