"""Labels that need not be parsed again: those of the last start, as long as no file that they come
from has changed.

A file of the cache is one of torch, of tensors and plain types; all processes of a machine map it.
Everything in the cache's folder is safe to delete.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from boltbox.detector.data.datasets import DetectionDataset, Fault
from boltbox.detector.data.file_list import FileList
from boltbox.detector.data.label_table import LabelTable, Texts
from boltbox.detector.system.atomic_file import not_fatal, write_beside
from boltbox.detector.system.torch_file import load_torch_file

TABLES = {"files": Texts, "labels": LabelTable, "label_files": Texts, "places": Texts}


def cache_folder() -> Path:
    """BOLTBOX_CACHE, else boltbox in XDG_CACHE_HOME, else ~/.cache/boltbox. Nothing is created."""
    # a user without a home directory stays "~", and gets the cache into the working directory
    home = os.path.expanduser("~").removeprefix("~")
    folder = Path(home, ".cache/boltbox")
    if parent := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(parent, "boltbox")
    if own := os.environ.get("BOLTBOX_CACHE"):
        folder = Path(own)
    return folder.absolute()


def digest(content: object) -> str:
    """A checksum of plain types and paths."""
    return sha256(json.dumps(content, default=str).encode()).hexdigest()


class CacheFile:
    """What was read from a dataset's files, kept for later starts.

    Args:
        kind: what it is.
        of: the absolute paths and the options that it was read with. Other content of the same
            files replaces it.
    """

    def __init__(self, kind: str, of: Sequence[Any]) -> None:
        self.path = cache_folder() / "labels" / f"{kind}-{digest(of)[:24]}.pt"

    def load(self, key: object = None, stamp: str = "") -> dict[str, Any] | None:
        """What `save` has written.

        Args:
            key: as given to `save`; and no file that the content depends on may have changed.
            stamp: instead, another process of this machine has checked that; it got this stamp.

        Returns:
            The content, with `stamp`; its tensors are mapped, and writing to them changes no file.
            None if there is none, or the file is damaged.
        """
        try:
            content = load_torch_file(self.path, mmap=True, compare=not stamp)
            if stamp:
                is_same = content["stamp"] == stamp
            else:
                is_same = FileList.is_same(content["folders"], content["files"])
                is_same &= content["key"] == key
        except Exception:  # whatever is in the file
            return None
        return content if is_same else None

    def save(self, key: object, files: FileList, content: Mapping[str, Any]) -> str:
        """Keep content.

        Args:
            key: what it depends on besides files.
            files: those that were asked for.
            content: plain types, and tensors.

        Returns:
            Its stamp.
        """
        folders, states = files.record()
        about = {"key": key, "folders": folders, "files": states}
        stamp = digest(about)
        # other processes may write it too
        own = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        write = partial(torch.save, {**about, **content, "stamp": stamp})
        with not_fatal(self.path):
            os.replace(write_beside(own, write), self.path)
        return stamp


def save_dataset(cache: CacheFile, key: object, files: FileList, dataset: DetectionDataset) -> str:
    """Keep a dataset; arguments and result: see `CacheFile.save`."""
    content = dict(vars(dataset))
    content["faults"] = list(map(tuple, dataset.faults))
    content["label_sizes"] = torch.from_numpy(dataset.label_sizes)
    for name in TABLES:
        columns = vars(content[name]).items()
        content[name] = {column: torch.from_numpy(array) for column, array in columns}
    return cache.save(key, files, {"dataset": content})


def load_dataset(cache: CacheFile, key: object = None, stamp: str = "") -> DetectionDataset | None:
    """What `save_dataset` has written; arguments and result: see `CacheFile.load`."""
    content = cache.load(key, stamp)
    if content is None:
        return None
    fields = content["dataset"] | {"stamp": content["stamp"]}
    fields["faults"] = [Fault(*fault) for fault in fields["faults"]]
    fields["label_sizes"] = fields["label_sizes"].numpy()
    for name, table in TABLES.items():
        columns = fields[name].items()
        fields[name] = table(**{column: tensor.numpy() for column, tensor in columns})
    return DetectionDataset(**fields)
