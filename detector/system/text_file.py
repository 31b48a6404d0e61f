"""Text files that users give."""

import errno
import os
from pathlib import Path

from boltbox.detector.system.errors import InputError


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
        if not isinstance(e, OSError) or e.errno in (errno.ENAMETOOLONG, errno.ELOOP):
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
