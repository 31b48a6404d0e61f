"""Python's collector of cyclic garbage, which looks at every object each time: half a million after
our imports."""

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """For code that makes many objects, and no cycles that are garbage soon."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def lasting_imports() -> Iterator[None]:
    """For what a process imports for all its life: no collection meanwhile, and none looks at it
    later, not even at the end of the process, where to take all of it apart takes a second or two.
    What is made later ends as ever."""
    atexit.register(_mute)  # what is registered first is called last
    with without_garbage_collection():
        yield
        gc.freeze()


def _mute() -> None:
    """Nothing more on standard error: nanobind, within Triton, lists the functions that were not
    taken apart."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
