"""Processes that must not outlive the one that started them."""

import ctypes
import os
import signal
from pathlib import Path

import boltbox

HOME = str(Path(boltbox.__file__).parents[1])  # the folder that the package is in
VARIABLE = "BOLTBOX_PARENT"  # process id of the one that started this one and takes it along
_PR_SET_PDEATHSIG = 1


def environment(**more: str) -> dict[str, str]:
    """For a process that is to die with this one: it calls `die_with_parent`. It has a run folder
    of its own, and imports the same boltbox, from any folder."""
    kept = {k: v for k, v in os.environ.items() if k != "BOLTBOX_RUN"}
    paths = os.pathsep.join(filter(None, (HOME, os.environ.get("PYTHONPATH"))))
    return {**kept, VARIABLE: str(os.getpid()), "PYTHONPATH": paths, **more}


def die_with_parent() -> None:
    """If `environment` asks for it, this process is killed when the one that started it is gone;
    what this process starts is its own matter."""
    parent = os.environ.pop(VARIABLE, None)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it went before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)
