"""The processes of a training, whoever has started them: Lightning, torchrun, a command of ours."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch.distributed as dist

import boltbox
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import PARENT

GONE = re.compile(
    "timed? ?out|closed|by peer|not connected|broken pipe|refused|(read|write) error", re.IGNORECASE
)


def lost_contact(error: BaseException) -> bool:
    """Whether an error of torch.distributed means that another process is gone or timed out."""
    is_gloo = isinstance(error, RuntimeError) and "gloo" in str(error)
    if not is_gloo and not isinstance(error, dist.DistError):
        return False
    return GONE.search(str(error)) is not None


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a training that ends with this process (`die_with_parent`).

    It has its own run folder, and imports the same boltbox from any folder.

    Args:
        more: Further variables.
    """
    environment = dict(os.environ)
    environment.pop("BOLTBOX_RUN", None)
    environment[PARENT] = str(os.getpid())
    path = str(Path(boltbox.__file__).parents[1])
    if os.environ.get("PYTHONPATH"):
        path += os.pathsep + os.environ["PYTHONPATH"]
    environment["PYTHONPATH"] = path
    return environment | more


def processes_and_machines() -> tuple[int, int] | None:
    """Processes per machine and number of machines, where torchrun has started them or srun several
    tasks; None elsewhere.

    Raises:
        InputError: srun has started more tasks on one machine than on another.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    # `srun --ntasks 4 --pty bash` is a shell in the first task; the others have ended
    if tasks == 1 or os.environ.get("SLURM_JOB_NAME") == "bash":
        return None
    if "," in os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""):  # 3,1 and not 2(x2)
        raise InputError("srun: give each machine the same number of tasks (--ntasks-per-node)")
    machines = int(os.environ["SLURM_STEP_NUM_NODES"])
    return tasks // machines, machines
