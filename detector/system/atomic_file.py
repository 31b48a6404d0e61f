"""Writing files so that nobody reads half of one, and a power cut loses none."""

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
    """Write `.NAME.tmp` beside `path`. If that fails, nothing is left of it.

    Args:
        path: The final file.
        write: Writes the content into a file.
        sync: Flush the file to the disk.

    Returns:
        The path of `.NAME.tmp`. What had that name, like a file of a killed process or a link, is
        removed and not written to.
    """
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
    """Write beside `path`, then move into place: `path` holds the old content or all of the new.

    Args:
        path: The file.
        content: Text, in which the bytes of file names that are no UTF-8 become escapes; bytes, or
            a function that writes into the file.
        sync: Flush content and name to the disk. For thousands of small files `sync_files` is
            faster.
    """
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    if isinstance(content, bytes):
        content = methodcaller("write", content)
    beside = write_beside(path, content, sync)
    try:
        os.replace(beside, path)
    except OSError:
        remove(beside)
        raise
    if sync:
        sync_folder(path.parent)


def make_folder(folder: Path, exist_ok: bool = True) -> list[Path]:
    """Make a folder and its parents, and flush their names to the disk.

    Returns:
        Those that were missing, inner ones first.
    """
    missing = [each for each in [folder, *folder.parents] if not each.exists()]
    folder.mkdir(parents=True, exist_ok=exist_ok)
    for each in missing:
        sync_folder(each.parent)
    return missing


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the file system can. Until then a power cut may
    undo that a file was made, moved or removed."""
    with contextlib.suppress(OSError):
        _sync(folder)


def sync_files(paths: Collection[Path]) -> None:
    """Flush files, and the names in their folders, to the disk; eight at a time, because the disk
    then writes many at once (2000 small files on ext4: 0.3 s, one by one 11 s)."""
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
    """Remove a file, if that is possible."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def not_fatal(path: Path) -> Iterator[None]:
    """While this lasts, an OSError about a file that the command can do without is a warning."""
    try:
        yield
    except OSError as e:
        rank_zero_print(f"warning: {path} could not be written ({e}); all else continues")


def write_json(path: Path, content: Any) -> None:
    """Write a file that the command can do without, see `not_fatal`."""
    with not_fatal(path):
        write_atomically(path, json.dumps(content, indent=1))
