"""The files and folders that decide what a data set holds."""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

# A file system's clock ticks this seldom, in nanoseconds: of two changes within a tick the second
# may leave the time as it was.
_TICK = 20_000_000


class Origins:
    """Files and folders, and how each was just before it was read. A folder changes when a file in
    it comes or goes."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._known: set[str] = set()
        self._states: list[np.ndarray] = []

    def note(self, paths: Iterable[str | Path]) -> None:
        """To be called before they are read; what does not exist counts too. The first time
        counts."""
        new = [path for path in dict.fromkeys(map(str, paths)) if path not in self._known]
        self._known |= set(new)
        found = states(new)
        if 0 <= time.time_ns() - found[:, 1].max(initial=-1) < _TICK:
            time.sleep(_TICK / 1e9)  # from here on a change has another time
            found = states(new)
        self.paths += new
        self._states.append(found)

    def states(self) -> np.ndarray:
        """(n, 2), see the function `states`, as they were noted."""
        return np.concatenate([np.zeros((0, 2), np.int64), *self._states])


def states(paths: Sequence[str]) -> np.ndarray:
    """(n, 2) int64: size in bytes and time of the last change in nanoseconds; -1, -1 where there is
    nothing."""
    rows = np.full((len(paths), 2), -1, np.int64)
    for i, path in enumerate(paths):
        try:
            found = os.stat(path)
        except OSError:
            continue
        rows[i] = found.st_size, found.st_mtime_ns
    return rows


def changes(paths: Sequence[str], before: np.ndarray) -> str:
    """Which of them are no longer as `before` (n, 2), in words; an empty string if all are."""
    different = np.flatnonzero((states(paths) != before).any(1))
    if not len(different):
        return ""
    more = f" and {len(different) - 1} more" if len(different) > 1 else ""
    return f"{paths[int(different[0])]}{more} changed"
