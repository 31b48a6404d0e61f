"""Labels that need not be parsed again: those of the last start, as long as no file that they come
from has changed.

A file of the cache holds flat arrays, which all processes of a machine map, and about them a JSON
text; no pickles. Everything in the cache's folder is safe to delete.
"""

import json
import math
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset, Fault
from boltbox.detector.data.file_list import FileList, Look, State
from boltbox.detector.data.label_table import LabelSources, LabelTable, Texts
from boltbox.detector.system.atomic_file import not_fatal, write_beside
from boltbox.detector.system.operating_system import alone

DTYPES = ("bool", "float32", "int32", "int64", "uint8")
Tables = Mapping[str, Mapping[str, np.ndarray]]
ALIGNMENT = 64  # bytes; each array starts at a multiple
BLOCK = 2**20  # bytes read at a time


def cache_folder() -> Path:
    """BOLTBOX_CACHE, else boltbox in XDG_CACHE_HOME, else ~/.cache/boltbox. Nothing is created."""
    if folder := os.environ.get("BOLTBOX_CACHE"):
        return Path(folder).absolute()
    if parent := os.environ.get("XDG_CACHE_HOME"):
        return Path(parent, "boltbox").absolute()
    return Path(os.path.expanduser("~/.cache/boltbox")).absolute()


def digest(content: object) -> str:
    """A checksum of plain types and paths."""
    return sha256(json.dumps(content, default=str).encode()).hexdigest()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """For one process of this machine at a time, if there can be a cache; the others wait."""
    folder = cache_folder() / "labels"
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(folder))
        yield


class Content(NamedTuple):
    """Of a file of the cache.

    Attributes:
        about: plain types.
        arrays: by table and column; they are mapped, and writing to them changes no file.
    """

    about: dict[str, Any]
    arrays: Tables


class CacheFile:
    """What was read from a dataset's files, kept for later starts.

    Args:
        kind: what it is.
        of: the absolute paths and the options that it was read with. Other content of the same
            files replaces it.
    """

    def __init__(self, kind: str, of: Sequence[Any]) -> None:
        self.path = cache_folder() / "labels" / f"{kind}-{digest(of)[:24]}.arrays"

    def load(self, key: object = None, stamp: str = "") -> Content | None:
        """What `save` has written.

        Args:
            key: as given to `save`; and no file that the content depends on may have changed.
            stamp: instead, another process of this machine has checked that; it got this stamp.

        Returns:
            None if there is none, or the file is damaged.
        """
        try:
            content = _read(self.path, check=not stamp)
            about = content.about
            if stamp:
                return content if about["stamp"] == stamp else None
            folders = {path: Look(*look) for path, look in about["folders"]}
            files = {path: State(*state) for path, state in about["files"]}
            is_same = about["key"] == key and FileList.is_same(folders, files)
            return content if is_same else None
        except Exception:  # whatever is in the file
            return None

    def save(
        self,
        key: object,
        files: FileList,
        about: Mapping[str, Any],
        arrays: Tables,
    ) -> str:
        """Keep content.

        Args:
            key: what it depends on besides files.
            files: those that were asked for.
            about: plain types.
            arrays: by table and column.

        Returns:
            Its stamp.
        """
        folders, states = files.record()
        record = {"folders": list(folders.items()), "files": list(states.items())}
        about = {"key": key, **record, **about}
        about["stamp"] = digest(about)
        # other processes may write it too
        own = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with not_fatal(self.path):
            os.replace(write_beside(own, partial(_write, about=about, arrays=arrays)), self.path)
        return about["stamp"]


def _write(file: BinaryIO, about: Mapping[str, Any], arrays: Tables) -> None:
    """The length of the JSON text; the text, with dtypes and shapes; the arrays, each at a multiple
    of ALIGNMENT; a checksum of all that."""
    columns = []
    shapes = []
    for table, of_table in arrays.items():
        for name, array in of_table.items():
            columns.append(np.ascontiguousarray(array))
            shapes.append((table, name, array.dtype.name, array.shape))
    text = json.dumps({**about, "arrays": shapes}).encode()
    checksum = 0
    blocks: list[bytes | memoryview] = [len(text).to_bytes(8), text]
    size = 8 + len(text)
    for array in columns:
        padding = bytes(-size % ALIGNMENT)
        blocks += [padding, array.data]
        size += len(padding) + array.nbytes
    for block in blocks:
        checksum = zlib.crc32(block, checksum)
        file.write(block)
    file.write(checksum.to_bytes(8))


def _read(path: Path, check: bool) -> Content:
    """What `_write` has written.

    Raises:
        Exception: of many kinds: the file is damaged, or is none.
    """
    with open(path, "rb") as file:
        if check:
            _check(file)
        text = file.read(int.from_bytes(file.read(8)))
        start = file.tell()
    about = json.loads(text)
    mapped = np.asarray(np.memmap(path, np.uint8, "c"))
    arrays: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for table, name, dtype, shape in about.pop("arrays"):
        if dtype not in DTYPES:
            raise ValueError(dtype)
        start += -start % ALIGNMENT
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays[table][name] = mapped[start : start + size].view(dtype).reshape(shape)
        start += size
    return Content(about, arrays)


def _check(file: BinaryIO) -> None:
    """Raises ValueError if a file is not as it was written; else it is at its start again."""
    left = os.fstat(file.fileno()).st_size - 8
    checksum = 0
    while left > 0:
        block = file.read(min(left, BLOCK))
        checksum = zlib.crc32(block, checksum)
        left -= len(block)
    if checksum != int.from_bytes(file.read()):
        raise ValueError("damaged")
    file.seek(0)


def save_dataset(cache: CacheFile, key: object, files: FileList, dataset: DetectionDataset) -> str:
    """Keep a dataset.

    Args:
        cache: where.
        key: see `CacheFile.save`.
        files: those that it was read from.
        dataset: what to keep.

    Returns:
        Its stamp.
    """
    about = {
        "names": dataset.names,
        "faults": list(map(astuple, dataset.faults)),
        "image_folders": dataset.folders,
        "fingerprint": dataset.fingerprint,
    }
    tables = {
        "files": dataset.files,
        "labels": dataset.labels,
        "label_files": dataset.sources.files,
        "places": dataset.sources.places,
    }
    arrays = {name: vars(table) for name, table in tables.items()}
    arrays["sources"] = {"sizes": dataset.sources.sizes}
    return cache.save(key, files, about, arrays)


def load_dataset(cache: CacheFile, key: object = None, stamp: str = "") -> DetectionDataset | None:
    """What `save_dataset` has written; arguments and result: see `CacheFile.load`."""
    cached = cache.load(key, stamp)
    if cached is None:
        return None
    about, arrays = cached
    try:
        label_files = Texts(**arrays["label_files"])
        places = Texts(**arrays["places"])
        return DetectionDataset(
            Texts(**arrays["files"]),
            LabelTable(**arrays["labels"]),
            about["names"],
            LabelSources(label_files, places, **arrays["sources"]),
            [Fault(*fault) for fault in about["faults"]],
            list(map(tuple, about["image_folders"])),
            about["fingerprint"],
            about["stamp"],
        )
    except Exception:  # whatever is in the file
        return None
