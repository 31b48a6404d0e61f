"""What boltbox can make again, kept for the next start. Everything in the folder is safe to
delete."""

import os
import tempfile
from pathlib import Path

from boltbox.detector.system.rank_zero import rank_zero_print

_reported: set[str] = set()


def cache_folder() -> Path:
    """BOLTBOX_CACHE, else boltbox in XDG_CACHE_HOME, else ~/.cache/boltbox, or where there is no
    home, one for temporary files. Nothing is created."""
    if own := os.environ.get("BOLTBOX_CACHE"):
        return Path(own).absolute()
    home = Path(os.environ.get("HOME") or tempfile.gettempdir())
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache").absolute() / "boltbox"


def say_without(what: str, why: OSError) -> None:
    """One line about a cache that cannot be used, once, whatever the number of splits."""
    if what not in _reported:
        _reported.add(what)
        rank_zero_print(f"{what} are not cached ({why}); BOLTBOX_CACHE may name another folder")
