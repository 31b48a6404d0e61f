"""Labels that need not be parsed again: those of the last start, as long as no file that they come
from has changed. A file of the cache is a NumPy archive, without pickles: flat arrays, and the rest
as JSON."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.data.cache.folder import cache_folder, own_name, say_without
from boltbox.detector.data.cache.origins import changes
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_table import LabelSource, LabelTable
from boltbox.detector.data.report import DataReport
from boltbox.detector.system.atomic_file import write_beside
from boltbox.detector.system.rank_zero import rank_zero_print

VERSION = 5


def cached(
    split: str, places: Sequence[str], options: dict[str, Any], read: Callable[[], DetectionDataset]
) -> DetectionDataset:
    """What `read` gives, from the cache if nothing that it depends on has changed. If it has, one
    line says what.

    Args:
        split: its name, for the user.
        places: paths that distinguish this data set and split from all others.
        options: what else decides the content, as JSON can hold it; `names` are the class names.
    """
    key = json.dumps([str(Path.cwd()), *places])
    try:
        path = cache_folder() / "labels" / f"{split}-{sha256(key.encode()).hexdigest()[:24]}.npz"
    except OSError as e:
        say_without("labels", e)
        return read()
    found = _load(path, options)
    if isinstance(found, DetectionDataset):
        return found
    if found:
        rank_zero_print(f"labels cache of {split} rebuilt because {found}")
    dataset = read()
    try:
        _save(path, dataset, options, split)
    except OSError as e:
        say_without("labels", e)
    return dataset


def _load(path: Path, options: dict[str, Any]) -> DetectionDataset | str:
    """The data set; or why the file cannot be used, "" if there is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(arrays.pop("about").tobytes())
        if about["version"] != VERSION:
            return "it was written by another version of boltbox"
        different = [name for name in options if about["options"].get(name) != options[name]]
        if different:
            return f"{' and '.join(different)} changed"
        if why := changes(about["origins"], arrays.pop("states")):
            return why
        labels = LabelTable(**arrays)
        labels.check()
        sources = [
            LabelSource(file, places, size and tuple(size))
            for file, places, size in about["sources"]
        ]
        report = DataReport.from_dict(about["report"])
        if not len(about["files"]) == len(labels) == len(sources):
            raise ValueError("its parts do not fit together")
        return DetectionDataset(about["files"], labels, options["names"], report, sources=sources)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except Exception as e:  # whatever is in the file
        return f"it cannot be read ({e!r})"


def _save(path: Path, dataset: DetectionDataset, options: dict[str, Any], split: str) -> None:
    origins, states = dataset.origins.paths, dataset.origins.states()
    if why := changes(origins, states):
        rank_zero_print(f"labels of {split} are not cached: {why} while they were read")
        return
    about = {
        "version": VERSION,
        "options": options,
        "origins": origins,
        "files": dataset.files,
        "sources": dataset.sources,
        "report": dataclasses.asdict(dataset.report),
    }
    arrays: dict[str, Any] = dataset.labels.arrays() | {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "states": states,
    }
    os.replace(write_beside(own_name(path), lambda file: np.savez(file, **arrays)), path)
