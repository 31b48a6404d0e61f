"""Python's cyclic garbage collector, off for a while."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """For code that makes many objects and no cycles: each collection would look at all objects that there are, a million of
    PyTorch's and Lightning's among them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
