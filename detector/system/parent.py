"""A process that ends with its parent: in a collective it would wait for ever."""

import os

from boltbox.detector.system.operating_system import SIGKILL, die_with_this_parent

PARENT = "BOLTBOX_PARENT"  # process id of the command whose training this process is
FIRST_RANK = "BOLTBOX_FIRST_RANK"  # process id of the rank that starts the machine's other ranks


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone, if it is a rank or a training
    that Lightning, torchrun or a boltbox command started.

    Other processes may inherit the variables: those of the first rank have LOCAL_RANK 0 or none,
    and workers of torchrun have another parent.
    """
    parent = os.environ.pop(PARENT, None)
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if os.environ.get("LOCAL_RANK", "0") != "0" and not by_torchrun:
        parent = os.environ.pop(FIRST_RANK, parent)
    if parent or by_torchrun:
        die_with_this_parent()
    if parent and os.getppid() != int(parent):  # the parent ended before that call
        os.kill(os.getpid(), SIGKILL)


def announce_first_rank() -> None:
    """Tell the ranks that Lightning starts their parent, see `die_with_parent`."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[FIRST_RANK] = str(os.getpid())
