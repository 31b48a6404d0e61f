"""Labels that need not be parsed again: those of the last start, as long as no file that they come
from has changed.

A file of the cache is a block of packed.py. Two processes may write it at once: the last one wins,
and both are right.
"""

import dataclasses
import json
import mmap
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from boltbox.detector.data.cache.folder import cache_folder, own_name, say_without
from boltbox.detector.data.cache.origins import changes
from boltbox.detector.data.cache.packed import Damaged, pack, unpack
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_sources import LabelSources
from boltbox.detector.data.label_table import FileNames, LabelTable
from boltbox.detector.data.report import DataReport, Fault, Remark
from boltbox.detector.system.atomic_file import write_beside
from boltbox.detector.system.rank_zero import rank_zero_print

# raise it with any change to what is read from an image's header or made of a label file
VERSION = 4


def cached(
    split: str, places: Sequence[str], options: dict[str, Any], read: Callable[[], DetectionDataset]
) -> DetectionDataset:
    """What `read` gives, from the cache if nothing that it depends on has changed. If it has, one
    line says what.

    Args:
        split: its name, for the user.
        places: paths that tell this data set and split from all others.
        options: what else decides the content, as JSON can hold it; `names` are the class names.
    """
    key = json.dumps([str(Path.cwd()), *places])
    try:
        path = cache_folder() / "labels" / f"{split}-{sha256(key.encode()).hexdigest()[:24]}"
        dataset, why = _load(path, options)
        if dataset:
            return dataset
        if why:
            rank_zero_print(f"labels cache of {split} rebuilt because {why}")
    except OSError as e:
        say_without("labels", e)
        return read()
    dataset = read()
    try:
        _save(path, dataset, options, split)
    except OSError as e:
        say_without("labels", e)
    return dataset


def _load(path: Path, options: dict[str, Any]) -> tuple[DetectionDataset | None, str]:
    """The data set; or None and, if there is a file, why it doesn't serve."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            # ranks share its pages
            block = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError:
        return None, ""
    try:
        about, arrays = unpack(block)
        if not isinstance(about, dict) or about.get("version") != VERSION:
            return None, "it was written by another version of boltbox"
        different = [key for key in options if about["options"].get(key) != options[key]]
        if different:
            return None, f"{' and '.join(different)} changed"
        origins = FileNames(arrays["origin_text"], arrays["origin_starts"])
        why = changes(origins, arrays["origin_states"])
        if why:
            return None, why
        labels = LabelTable(**{f.name: arrays[f.name] for f in dataclasses.fields(LabelTable)})
        labels.check()
        rows = about["report"]
        told = {"faults": _fault, "lost_images": _fault, "remarks": lambda row: Remark(*row)}
        report = DataReport(
            **rows | {name: [of(row) for row in rows[name]] for name, of in told.items()}
        )
        files = FileNames(arrays["file_text"], arrays["file_starts"])
        return DetectionDataset(
            files, labels, options["names"], report, sources=LabelSources.from_arrays(arrays)
        ), ""
    except Damaged as e:
        return None, str(e)
    except (KeyError, TypeError, ValueError, IndexError) as e:
        return None, f"its content makes no sense ({e!r})"


def _fault(row: dict[str, Any]) -> Fault:
    return Fault(**{**row, "box": row["box"] and tuple(row["box"])})


def _save(path: Path, dataset: DetectionDataset, options: dict[str, Any], split: str) -> None:
    origins = FileNames.of(dataset.origins.paths)
    if why := changes(origins, dataset.origins.states()):
        rank_zero_print(f"labels of {split} are not cached: {why} while they were read")
        return
    about = {"version": VERSION, "options": options, "report": dataclasses.asdict(dataset.report)}
    arrays = {
        **dataset.labels.arrays(),
        **dataset.sources.arrays(),
        "file_text": dataset.files.text,
        "file_starts": dataset.files.starts,
        "origin_text": origins.text,
        "origin_starts": origins.starts,
        "origin_states": dataset.origins.states(),
    }
    block = pack(about, arrays)
    os.replace(write_beside(own_name(path), lambda file: file.write(block)), path)
