"""Writing files so that nobody ever sees half of one, and a power cut loses none."""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from pathlib import Path
from typing import Any, BinaryIO

from boltbox.detector.system.operating_system import SYNC_MODE, flush_to_disk
from boltbox.detector.system.rank_zero import rank_zero_print


def write_beside(path: Path, write: Callable[[BinaryIO], object], sync: bool = True) -> Path:
    """Write `.NAME.tmp` in the folder of `path` and flush it to the disk; if that fails, nothing is
    left of it. What has that name already, of a process that was killed, or a link to somewhere, is
    removed and not written to."""
    make_folder(path.parent)
    beside = path.with_name(f".{path.name}.tmp")
    remove(beside)
    try:
        with open(beside, "xb") as file:
            write(file)
            file.flush()
            if sync:
                flush_to_disk(file.fileno())
    except BaseException:
        remove(beside)
        raise
    return beside


def write_atomically(
    path: Path, content: str | bytes | Callable[[BinaryIO], object], sync: bool = True
) -> None:
    """Write beside `path`, then move into place: `path` holds the old content or the new, whole.

    Args:
        content: text, bytes, or what writes into the file.
        sync: flush content and name to the disk. Slow for thousands of small files, for which
            `sync_files` does it in the end.
    """
    if isinstance(content, str):
        content = content.encode()
    write = methodcaller("write", content) if isinstance(content, bytes) else content
    beside = write_beside(path, write, sync)
    try:
        os.replace(beside, path)
    except OSError:
        remove(beside)
        raise
    if sync:
        sync_folder(path.parent)


def make_folder(folder: Path, exist_ok: bool = True) -> list[Path]:
    """Make a folder, and those that it is in, and flush their names to the disk. Returns those that
    were not there, inner ones first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=exist_ok)
    for each in missing:
        sync_folder(each.parent)
    return missing


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk. Until then a power cut may undo that files in it
    were made, moved or removed. Nothing, where the file system cannot do that."""
    with contextlib.suppress(OSError):
        _sync(folder)


def sync_files(paths: Collection[Path]) -> None:
    """Flush files, and the names in their folders, to the disk. Several at a time: the disk then
    writes many at once (2000 small files on ext4: 0.3 s, one by one 11 s)."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_sync, paths))
    for folder in {path.parent for path in paths}:
        sync_folder(folder)


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, SYNC_MODE)
    except FileNotFoundError:  # removed meanwhile
        return
    try:
        flush_to_disk(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, if it is there and the disk lets us."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def not_fatal(path: Path) -> Iterator[None]:
    """A file that the training can do without: a full or read-only disk is reported, and all else
    continues."""
    try:
        yield
    except OSError as e:
        rank_zero_print(f"warning: {path} could not be written ({e}); all else continues")


def write_json(path: Path, content: Any) -> None:
    """Write a file that the command can do without, see `not_fatal`."""
    with not_fatal(path):
        write_atomically(path, json.dumps(content, indent=1))
