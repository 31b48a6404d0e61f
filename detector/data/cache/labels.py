"""Labels that need not be parsed again: those of the last start, as long as no file that they come
from has changed. A file of the cache is a NumPy archive, without pickles: flat arrays, and the rest
as JSON. Everything in the cache's folder is safe to delete."""

import json
import os
from collections.abc import Iterable
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset, Fault
from boltbox.detector.data.label_table import LabelSource, LabelTable
from boltbox.detector.system.atomic_file import not_fatal, write_beside


def cache_folder() -> Path:
    """BOLTBOX_CACHE, else boltbox in XDG_CACHE_HOME, else ~/.cache/boltbox. Nothing is created."""
    if folder := os.environ.get("BOLTBOX_CACHE"):
        return Path(folder).absolute()
    if parent := os.environ.get("XDG_CACHE_HOME"):
        return Path(parent, "boltbox").absolute()
    return Path(os.path.expanduser("~/.cache/boltbox")).absolute()


def states(paths: Iterable[str]) -> list[tuple[int, int]]:
    """Of each path size in bytes and time of the last change in nanoseconds; -1, -1 where there is
    nothing."""
    return list(map(_state, paths))


def _state(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return -1, -1
    return status.st_size, status.st_mtime_ns


def digest(content: object) -> str:
    """A checksum of plain types."""
    return sha256(json.dumps(content).encode()).hexdigest()


def load_labels(path: Path, stamp: str) -> DetectionDataset | None:
    """What `save_labels` has written with the same stamp.

    Args:
        path: of the file.
        stamp: a checksum of all that decides the content.

    Returns:
        None if there is none, or the file is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(arrays.pop("about").tobytes())
        if about["stamp"] != stamp:
            return None
        sources = [LabelSource(*source) for source in about["sources"]]
        faults = [Fault(*fault) for fault in about["faults"]]
        labels = LabelTable(**arrays)
        return DetectionDataset(about["files"], labels, about["names"], sources, faults)
    except Exception:  # whatever is in the file
        return None


def save_labels(path: Path, stamp: str, dataset: DetectionDataset) -> None:
    """Keep a dataset for later starts.

    Args:
        path: of the file.
        stamp: a checksum of all that decides the content.
        dataset: what to keep.
    """
    about = {
        "stamp": stamp,
        "files": dataset.files,
        "names": dataset.names,
        "sources": dataset.sources,
        "faults": list(map(astuple, dataset.faults)),
    }
    arrays = dict(vars(dataset.labels))
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    # other processes may write it too
    own = path.with_name(f"{path.name}.{os.getpid()}")
    with not_fatal(path):
        os.replace(write_beside(own, lambda file: np.savez(file, **arrays)), path)
