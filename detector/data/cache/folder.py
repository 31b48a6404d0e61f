"""Where boltbox keeps what it can make again. Everything in there is safe to delete."""

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from boltbox.detector.system.rank_zero import rank_zero_print

# seconds without a write, after which an unfinished file is that of a process that died
_FORGOTTEN = 3600
_told: set[str] = set()


def cache_folder() -> Path:
    """BOLTBOX_CACHE, else boltbox in XDG_CACHE_HOME, else ~/.cache/boltbox. Nothing is created.

    Raises:
        OSError: the user has no home.
    """
    if own := os.environ.get("BOLTBOX_CACHE"):
        return Path(own).absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "boltbox"
    try:
        return Path.home() / ".cache" / "boltbox"
    except RuntimeError:
        raise OSError("no home folder; set BOLTBOX_CACHE") from None


def own_name(path: Path) -> Path:
    """A name in the folder of `path` that no other process uses. What processes that died left
    there is removed."""
    for left in path.parent.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _FORGOTTEN:
                left.unlink()
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}")


def say_without(what: str, why: OSError) -> None:
    """The one line about a cache that cannot be; said once, whatever the number of splits."""
    if what not in _told:
        _told.add(what)
        reason = f"{why.filename}: {why.strerror}" if why.filename else why.strerror or str(why)
        rank_zero_print(f"{what} are not cached ({reason}); BOLTBOX_CACHE may name another folder")
