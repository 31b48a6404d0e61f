"""Names of files as users see them."""

import os
from collections.abc import Sequence


def common_folder(files: Sequence[str]) -> str:
    """The folder that all files are in; empty if there is none, or if some paths are absolute and
    others relative.

    >>> common_folder(["/data/a/1.png", "/data/b/1.png"]), common_folder(["a.png", "/b.png"])
    ('/data', '')
    """
    if not files or len(set(map(os.path.isabs, files))) > 1:
        return ""
    return os.path.commonpath([os.path.dirname(file) for file in files])


def inside(file: str, folder: str) -> str:
    """The path of a file from a folder; if `folder` is empty, the path as it is."""
    return os.path.relpath(file, folder) if folder else file
