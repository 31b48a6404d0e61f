"""Files that a training wrote and reads again: one that is damaged is set aside."""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from boltbox.detector.system.atomic_file import not_fatal
from boltbox.detector.system.rank_zero import rank_zero_print

Content = TypeVar("Content")
DAMAGED = (OSError, ValueError, TypeError, LookupError, RecursionError, csv.Error)


def read_or_set_aside(
    path: Path, read: Callable[[Path], Content], empty: Callable[[], Content]
) -> Content:
    """What `read` makes of a file; `empty()` if there is none, or if `read` raises one of DAMAGED:
    then the file is renamed to NAME.damaged, and a line says so."""
    try:
        return read(path) if path.is_file() else empty()
    except DAMAGED as e:
        aside, why = (
            path.with_name(f"{path.name}.damaged"),
            " ".join(f"{e}".split()) or type(e).__name__,
        )
        with not_fatal(aside):
            os.replace(path, aside)
            rank_zero_print(
                f"warning: {path} is damaged ({why}) and was renamed to {aside.name}; a new one is"
                " begun"
            )
        return empty()
