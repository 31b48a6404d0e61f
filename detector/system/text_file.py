"""Text files that users give: read whole, but not whatever they are."""

import errno
import os
import stat
from pathlib import Path

from detector.system.errors import InputError

LARGEST = 32 * 2**20  # bytes; a label file of 100,000 boxes has 4 MB
_CHUNK = 2**20


def read_text(path: str | Path, largest: int = LARGEST, replace: bool = False) -> str:
    """The text of a file, without the mark that editors put before UTF-8.

    Args:
        largest: bytes; a larger file is not read.
        replace: bytes that are no UTF-8 become replacement characters, and zero bytes stay, instead of being an error.

    Raises:
        FileNotFoundError: there is no such file; a name that no file can have is none either.
        InputError: "PATH: why": it is no regular file (a device, a pipe, which may never end), too large, or no text.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as e:
        if is_impossible(e):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from None
        raise
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: this is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: this is no regular file but a device, a pipe or a socket")
    content, size = bytearray(), found.st_size
    with open(path, "rb") as file:
        while size <= largest and (chunk := file.read(_CHUNK)):  # read() reserves all that it is asked for
            content += chunk
            size = max(size, len(content))  # some, as those in /proc, do not say how large they are
    if size > largest:
        raise InputError(f"{path}: the file has {size / 2**20:.0f} MB, more than the {largest / 2**20:.0f} MB that are read")
    try:
        text = content.decode("utf-8-sig", "replace" if replace else "strict")
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: this is not a text file in UTF-8 (byte {e.start})") from None
    if "\0" in text and not replace:
        raise InputError(f"{path}: this is not a text file (it holds zero bytes)")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads text


def is_file(path: str | Path) -> bool:
    """Whether a regular file is there. A name that no file can have (too long, with a zero byte, links that go round) is none,
    where `Path.is_file` raises."""
    return stat.S_ISREG(_mode(path))


def is_dir(path: str | Path) -> bool:
    """Whether a folder is there, see `is_file`."""
    return stat.S_ISDIR(_mode(path))


def exists(path: str | Path) -> bool:
    """Whether anything is there, see `is_file`."""
    return _mode(path) != 0


def is_pipe(path: str | Path) -> bool:
    """Whether a named pipe is there, which has an end only if somebody writes into it."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _mode(path: str | Path) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError) as e:
        if is_impossible(e) or isinstance(e, FileNotFoundError | NotADirectoryError):
            return 0
        raise


def is_impossible(error: OSError | ValueError) -> bool:
    """Whether an error of the system says that no file can have such a name."""
    return not isinstance(error, OSError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
