"""Labels that need not be parsed again: those of the last start, as long as no file that they come
from has changed. A file of the cache is a NumPy archive, without pickles: flat arrays, and the rest
as JSON."""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.data.cache import cache_folder, say_without
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_table import LabelSource, LabelTable
from boltbox.detector.data.report import DataReport
from boltbox.detector.system.atomic_file import write_beside
from boltbox.detector.system.rank_zero import rank_zero_print

VERSION = 6
# A file system's clock ticks this seldom, in nanoseconds: of two changes within a tick the second
# may leave the time as it was.
_TICK = 20_000_000


class Origins:
    """Files and folders that decide what a data set holds, and how each was just before it was
    read. A folder changes when a file in it comes or goes."""

    def __init__(self) -> None:
        self._states: dict[str, np.ndarray] = {}

    def note(self, paths: Iterable[str | Path]) -> None:
        """To be called before they are read; what does not exist counts too. The first time
        counts."""
        new = [path for path in map(str, paths) if path not in self._states]
        found = states(new)
        if 0 <= time.time_ns() - found[:, 1].max(initial=-1) < _TICK:
            time.sleep(_TICK / 1e9)  # from here on a change has another time
            found = states(new)
        self._states |= zip(new, found, strict=True)

    @property
    def paths(self) -> list[str]:
        return list(self._states)

    def states(self) -> np.ndarray:
        """(n, 2), see the function `states`, as they were noted."""
        return np.array([*self._states.values()], np.int64).reshape(-1, 2)


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


def cached(
    split: str,
    places: Sequence[str],
    options: dict[str, Any],
    read: Callable[[], tuple[DetectionDataset, Origins]],
) -> DetectionDataset:
    """The data set that `read` gives, from the cache if nothing that it depends on has changed. If
    it has, one line says what.

    Args:
        split: its name, for the user.
        places: paths that distinguish this data set and split from all others.
        options: what else decides the content, as JSON can hold it; `names` are the class names.
    """
    key, options = json.dumps([str(Path.cwd()), *places]), {**options, "version": VERSION}
    path = cache_folder() / "labels" / f"{split}-{sha256(key.encode()).hexdigest()[:24]}.npz"
    found = _load(path, options)
    if isinstance(found, DetectionDataset):
        return found
    if found:
        rank_zero_print(f"labels cache of {split} rebuilt because {found}")
    dataset, origins = read()
    try:
        _save(path, dataset, origins, options)
    except OSError as e:
        say_without("labels", e)
    return dataset


def _load(path: Path, options: dict[str, Any]) -> DetectionDataset | str:
    """The data set; or why the file cannot be used, "" if there is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(arrays.pop("about").tobytes())
        different = [name for name in options if about["options"].get(name) != options[name]]
        if different:
            return f"{' and '.join(different)} changed"
        if why := changes(about["origins"], arrays.pop("states")):
            return why
        labels = LabelTable(**arrays)
        sources = [LabelSource(*source) for source in about["sources"]]
        report = DataReport.from_dict(about["report"])
        if not len(about["files"]) == len(labels) == len(sources):
            raise ValueError("its parts do not fit together")
        return DetectionDataset(about["files"], labels, options["names"], report, sources=sources)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except Exception as e:  # whatever is in the file
        return f"it cannot be read ({e!r})"


def _save(path: Path, dataset: DetectionDataset, origins: Origins, options: dict[str, Any]) -> None:
    about = {
        "options": options,
        "origins": origins.paths,
        "files": dataset.files,
        "sources": dataset.sources,
        "report": dataclasses.asdict(dataset.report),
    }
    arrays: dict[str, Any] = vars(dataset.labels) | {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "states": origins.states(),
    }
    own = path.with_name(f"{path.name}.{os.getpid()}")  # other processes may write it too
    os.replace(write_beside(own, lambda file: np.savez(file, **arrays)), path)
