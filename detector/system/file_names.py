"""Names of files: made from names that users give, and shown to them."""

import os
from collections.abc import Sequence
from hashlib import sha256

MOST_BYTES = 200  # file systems take 255; endings like _000012.jpg are still to come


def short_name(name: str, most: int = MOST_BYTES) -> str:
    """A name of a file or folder of at most so many bytes; a longer one is cut, and gets a mark
    that tells it from others with the same beginning.

    >>> short_name("cat"), short_name("c" * 30, 20)
    ('cat', 'ccccccccccc~489105dc')
    """
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) <= most:
        return name
    mark = f"~{sha256(encoded).hexdigest()[:8]}"
    return encoded[: most - len(mark)].decode(errors="ignore") + mark


def common_folder(files: Sequence[str]) -> str:
    """The folder that all files are in, each as absolute or as relative as the others; empty if
    there is none.

    >>> common_folder(["/data/a/1.png", "/data/b/1.png"]), common_folder(["a.png", "/b.png"])
    ('/data', '')
    """
    if not files or len({os.path.isabs(file) for file in files}) > 1:
        return ""
    return os.path.commonpath([os.path.dirname(file) for file in files])


def inside(file: str, folder: str) -> str:
    """The file's name from that folder on; an empty folder: its whole name."""
    return os.path.relpath(file, folder) if folder else file
