"""What was found before, in the user's cache folder: the same files need not be examined twice."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.cache.folder import cache_folder
from boltbox.detector.data.images import most_pixels
from boltbox.detector.system.atomic_file import write_atomically

_VERSION = 2  # to be raised when the examinations change


def state_of(paths: Iterable[str | Path], *more: object) -> str:
    """A name for the state of files and folders: paths, sizes, times of change; and whatever else
    counts."""
    digest = hashlib.sha256(repr((_VERSION, most_pixels(), more)).encode(errors="surrogateescape"))
    for path in paths:
        try:
            stat = os.stat(path)
            words = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
        except OSError:
            words = f"{path}\0gone\n"
        digest.update(words.encode(errors="surrogateescape"))
    return digest.hexdigest()


def remember(source: str, subject: str, state: str, findings: list[Finding]) -> None:
    """Keep what was found on a subject ("images of train") of a data set, in place of what was kept
    before; nothing where the cache folder cannot be written to."""
    content = json.dumps([state, findings]).encode()
    with contextlib.suppress(OSError):
        write_atomically(_place(source, subject), lambda file: file.write(content))


def recall(source: str, subject: str, state: str) -> list[Finding] | None:
    """What was found on files in this state; None if nobody has looked."""
    try:
        known, rows = json.loads(_place(source, subject).read_text())
        return [Finding(*row) for row in rows] if known == state else None
    except (OSError, ValueError, TypeError):  # not there, or damaged
        return None


def _place(source: str, subject: str) -> Path:
    name = hashlib.sha256(
        f"{os.path.abspath(source)}\0{subject}".encode(errors="surrogateescape")
    ).hexdigest()
    return cache_folder() / "doctor" / f"{name[:32]}.json"
