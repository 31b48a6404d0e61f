"""Text and YAML files of users."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from boltbox.detector.system.addresses import is_address, read_bytes
from boltbox.detector.system.errors import InputError, in_one_line

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_VALUES = 1_000_000  # of a YAML file


def check_regular(path: str | Path) -> None:
    """Refuse what could be read for ever.

    Raises:
        OSError: It is a device, a pipe, a socket or a folder, or it is missing.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def read_text(path: str | Path, replace: bool = False, pipe: bool = False) -> str:
    """The text of a file in UTF-8, without the byte order mark of some editors.

    Args:
        path: The file, or unless `pipe` its address.
        replace: Replace invalid bytes and keep zero bytes instead of raising an error.
        pipe: The user typed the path, which may be a pipe: `<(command)`.

    Raises:
        InputError: There is no such file, or it is not text.
        Unreachable: Its server does not give it.
    """
    try:
        if not pipe and not is_address(path):
            check_regular(path)
        content = Path(path).read_bytes() if pipe else read_bytes(path)
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        reason = getattr(e, "strerror", e)
        if isinstance(e, FileNotFoundError):
            reason = "no such file"
        raise InputError(f"{path}: {reason}") from None
    try:
        text = content.decode("utf-8-sig", "replace" if replace else "strict")
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: this is not a text file in UTF-8 (byte {e.start})") from None
    if "\0" in text and not replace:
        raise InputError(f"{path}: this is not a text file (it holds zero bytes)")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads text


def load_yaml(text: str) -> Any:
    """The value of YAML text, of plain types.

    Raises:
        Exception: Of many kinds: the text is not YAML, does not fit its tags (`!!bool x`), is
            nested too deep, or its aliases stand for more than MOST_VALUES values.
    """
    value = yaml.load(text, Loader=_Loader)  # a safe one
    if _count(value, {}) > MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {MOST_VALUES} values")
    return value


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values there would be if each alias were written out.

    Args:
        value: A value of YAML.
        known: The counts of maps and lists by their id; one within itself counts as too many.
    """
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_VALUES
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(item, known) for item in inner)
    return known[id(value)]


def parse_yaml(text: str, path: str | Path) -> Any:
    """The value of a file's YAML text.

    Raises:
        InputError: It is not valid.
    """
    try:
        return load_yaml(text)
    except Exception as e:
        raise InputError(f"{path}: not valid YAML ({in_one_line(e)})") from None
