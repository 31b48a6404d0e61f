"""Where boltbox keeps what it can make again. Everything in there is safe to delete."""

import os
from pathlib import Path


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
