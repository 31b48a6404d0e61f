"""A process that ends with its parent: in a collective it would wait for ever."""

import ctypes
import os
import signal
import sys

PARENT = "BOLTBOX_PARENT"  # process id of the command whose training this process is
FIRST_RANK = "BOLTBOX_FIRST_RANK"  # process id of the rank that starts the machine's other ranks
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone, if Lightning, torchrun or a
    command of ours has started it as part of a training. Others are left alone.

    Further processes may inherit the variables: those of the first rank have LOCAL_RANK 0 or none,
    and workers of torchrun have another parent.
    """
    parent = os.environ.pop(PARENT, None)
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if os.environ.get("LOCAL_RANK", "0") != "0" and not by_torchrun:
        parent = os.environ.pop(FIRST_RANK, parent)
    if (parent or by_torchrun) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != int(parent):  # it went before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)


def announce_first_rank() -> None:
    """Let the ranks that Lightning starts know their parent, see `die_with_parent`."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[FIRST_RANK] = str(os.getpid())
