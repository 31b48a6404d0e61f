"""Writing files so that nobody ever sees half of one."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from detector.system.rank_zero import rank_zero_print


def write_beside(path: Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write `.NAME.tmp` in the folder of `path` and flush it to the disk; if that fails, nothing is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return beside


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write beside `path`, then move into place: `path` holds the old content or the new, whole."""
    os.replace(write_beside(path, write), path)


@contextlib.contextmanager
def not_fatal(path: Path) -> Iterator[None]:
    """A file that the training can do without: a full or read-only disk is said, and training goes on."""
    try:
        yield
    except OSError as e:
        rank_zero_print(f"warning: {path} could not be written ({e}); training goes on")
