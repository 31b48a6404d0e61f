"""Checkpoint files: reading one, whether one is intact, and the newest that is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from boltbox.detector.checkpoint.content import InvalidContent, check_checkpoint
from boltbox.detector.checkpoint.restricted import is_plain, load_restricted
from boltbox.detector.model.parts import MissingPart
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import is_file
from boltbox.detector.system.zip_archive import check_archive

Content = TypeVar("Content")


class FileVersion(NamedTuple):
    """Which file a path leads to, and in which state: it is another one after the file was replaced
    or written to."""

    device: int
    inode: int
    size: int  # bytes
    modified: int  # ns

    @classmethod
    def of(cls, path: str | Path | int) -> FileVersion:
        """Of a path or an open file's descriptor.

        Raises:
            OSError: there is no such file.
        """
        found = os.stat(path)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class CheckpointFile(NamedTuple):
    """A training checkpoint that was read and checked: path, content (tensors on the CPU, plain
    types), and the version of the file that this is the content of."""

    path: Path
    content: dict[str, Any]
    version: FileVersion


def read_checkpoint(path: Path, constructor: Callable[..., Any] | None = None) -> CheckpointFile:
    """Read a training checkpoint of ours, see `load_restricted`. Nothing in the file is executed,
    whoever made it.

    Args:
        constructor: of the module that was trained; its hyper-parameters must be of the types of
            its arguments. Default: only those of the network are looked at.

    Raises:
        InputError: "PATH: why": it is missing, damaged, or not a training checkpoint.
        MissingPart: it may be intact, but it needs a class of the user's own that is not found.
    """
    content, version = _read(path, lambda file: load_restricted(path, [], file))
    try:
        check_checkpoint(content, constructor)
    except MissingPart as e:
        raise MissingPart(f"{path}: {e}") from None
    except InvalidContent as e:
        raise InputError(f"{path}: not a training checkpoint of a detector ({e})") from None
    return CheckpointFile(path, content, version)


def validate(path: Path, constructor: Callable[..., Any] | None = None) -> str:
    """What is wrong with a checkpoint file, in a few words; an empty string if `read_checkpoint`
    would read it."""
    return _reason(path, lambda: read_checkpoint(path, constructor))


def validate_file(path: Path) -> str:
    """The same of the file alone, whatever it holds: for what was just written."""

    def check(file: BinaryIO) -> None:
        check_archive(path, file)
        if not is_plain(file):
            load_restricted(path, [], file)

    return _reason(path, lambda: _read(path, check))


def newest_intact(
    folder: Path, constructor: Callable[..., Any] | None = None
) -> tuple[CheckpointFile | None, list[str]]:
    """The intact checkpoint of a folder with the most training behind it, and a line for each that
    would come before it but is damaged. See `read_checkpoint`."""
    skipped: list[str] = []
    for path in _newest_first(folder):
        try:
            return read_checkpoint(path, constructor), skipped
        except MissingPart:
            raise
        except InputError as e:
            skipped.append(f"{e}; passed over")
    return None, skipped


def read_outline(path: Path) -> dict[str, Any]:
    """A training checkpoint, unchecked, its tensors not yet read from the file; {} if that cannot
    be done. Quick, whatever the size."""
    try:
        return load_restricted(path, [], mmap=True)
    except (InputError, OSError):
        return {}


def _newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a folder by the training batches behind them. last.ckpt comes first if it
    cannot be read, and if a run went back to its best.ckpt: what was trained before that then lies
    in older files, with more batches."""
    batches, last = (
        {path: batches_behind(path) for path in folder.glob("*.ckpt")},
        folder / "last.ckpt",
    )
    found = sorted(
        batches, key=lambda p: (batches[p], p == last, p.stat().st_mtime_ns), reverse=True
    )
    if last not in batches:
        return found
    written = last.stat().st_mtime_ns
    ahead = [
        p
        for p in found[: found.index(last)]
        if p.name != "previous.ckpt" and p.stat().st_mtime_ns >= written
    ]
    ahead = ahead if batches[last] >= 0 else []
    return [*ahead, last, *(p for p in found if p not in (*ahead, last))]


def batches_behind(path: Path) -> int:
    """How many training batches are behind a checkpoint, by its own account; -1 if that cannot be
    read."""
    try:
        batches = read_outline(path)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"][
            "processed"
        ]
    except (LookupError, TypeError):
        return -1
    return batches if isinstance(batches, int) else -1


def _reason(path: Path, read: Callable[[], object]) -> str:
    try:
        read()
    except MissingPart:
        raise
    except InputError as e:
        return str(e).removeprefix(f"{path}: ")
    return ""


def _read(path: Path, load: Callable[[BinaryIO], Content]) -> tuple[Content, FileVersion]:
    """What `load` makes of a file, and the file's version."""
    if not is_file(path):
        raise InputError(f"{path}: no such weights file")
    try:
        with open(path, "rb") as file:
            version = FileVersion.of(file.fileno())
            return load(file), version
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from None
