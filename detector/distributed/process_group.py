"""The processes of a training, whoever has started them: Lightning, torchrun, a command of ours."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist

import boltbox
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.parent import PARENT

GONE = re.compile(
    "timed? ?out|closed|by peer|not connected|broken pipe|refused|(read|write) error", re.IGNORECASE
)


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


def processes_and_machines() -> tuple[int, int] | None:
    """Processes on this machine and number of machines, as torchrun has them; None in a process
    that it has not started."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return processes, int(os.environ.get("WORLD_SIZE", 1)) // processes


def is_restart(run: Path | None) -> bool:
    """Whether `torchrun --max-restarts` has started this process again after a crash: it is to
    continue from the last checkpoint of the run.

    The store of torchrun's agent still holds the addresses of the processes that have died, and a
    process that reads one before it is written again cannot connect. So after a restart the process
    group gets a store of its own, at another port.

    Args:
        run: --run, the folder of the run.

    Raises:
        InputError: restarts are asked for, but a restart would not find the checkpoints of the run.
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) and not run:
        raise InputError(
            "torchrun --max-restarts needs --run DIR, so that a restart finds the checkpoints of"
            " the run"
        )
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + restarts)
    return restarts > 0
