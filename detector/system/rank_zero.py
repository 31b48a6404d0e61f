"""Telling the user something, once, whatever the number of processes."""

import os
from collections.abc import Callable

from boltbox.detector.system.terminal import printable

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "GROUP_RANK", "NODE_RANK", "SLURM_NODEID")

makes_way: Callable[[], None] | None = None  # a progress bar, from the line that it stands on


def rank_zero_print(text: str) -> None:
    """Print on the first process alone; control characters are shown, see `printable`."""
    # takes seconds, which a process that says nothing need not spend
    from lightning.fabric.utilities import rank_zero_only

    rank_zero_only(_print)(text)


def _print(text: str) -> None:
    if makes_way:
        makes_way()
    print(printable(text), flush=True)


def is_first_process() -> bool:
    """Whether this is the first of all processes, or the only one, as the environment says: there
    may be no Trainer yet."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)
