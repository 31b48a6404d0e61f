"""Names of files as users see them."""

import os
from collections.abc import Sequence


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
