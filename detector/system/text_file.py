"""Text files that users give, and what lies at a path: a name that no file can have is no error."""

import errno
import os
from os.path import exists
from os.path import isdir as is_dir
from os.path import isfile as is_file
from pathlib import Path

from boltbox.detector.system.errors import InputError

__all__ = ["exists", "is_dir", "is_file", "is_impossible", "read_text"]


def read_text(path: str | Path, replace: bool = False) -> str:
    """The text of a file, without the mark that editors put before UTF-8.

    Args:
        replace: bytes that are no UTF-8 become replacement characters, and zero bytes stay, instead
            of being an error.

    Raises:
        FileNotFoundError: there is no such file; a name that no file can have is none either.
        InputError: "PATH: why": it is a folder, or no text.
    """
    try:
        content = Path(path).read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path}: this is a folder, not a file") from None
    except (OSError, ValueError) as e:
        if is_impossible(e):
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)
            ) from None
        raise
    try:
        text = content.decode("utf-8-sig", "replace" if replace else "strict")
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: this is not a text file in UTF-8 (byte {e.start})") from None
    if "\0" in text and not replace:
        raise InputError(f"{path}: this is not a text file (it holds zero bytes)")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads text


def is_impossible(error: OSError | ValueError) -> bool:
    """Whether an error of the system says that no file can have such a name."""
    return not isinstance(error, OSError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
