"""Text and YAML files that users give."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from boltbox.detector.system.errors import InputError, in_one_line

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_VALUES = 1_000_000  # of a YAML file


def check_regular(path: str | Path) -> None:
    """Raises OSError for what could be read for ever: a device, a pipe, a socket; and for a folder
    or where there is no such file."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def read_text(path: str | Path, replace: bool = False, pipe: bool = False) -> str:
    """The text of a file, without the mark that editors put before UTF-8.

    Args:
        replace: bytes that are no UTF-8 become replacement characters, and zero bytes stay, instead
            of being an error.
        pipe: it need not be a regular file, because the user typed its name: `<(command)`.

    Raises:
        InputError: "PATH: why": there is no such file, or it is no text.
    """
    try:
        if not pipe:
            check_regular(path)
        content = Path(path).read_bytes()
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        missing = isinstance(e, FileNotFoundError)
        why = "no such file" if missing else getattr(e, "strerror", e)
        raise InputError(f"{path}: {why}") from None
    try:
        text = content.decode("utf-8-sig", "replace" if replace else "strict")
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: this is not a text file in UTF-8 (byte {e.start})") from None
    if "\0" in text and not replace:
        raise InputError(f"{path}: this is not a text file (it holds zero bytes)")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads text


def load_yaml(text: str) -> Any:
    """The value that YAML text stands for: plain types. Text that is no YAML, that its own tags do
    not fit (`!!bool x`), that is nested too deep, or whose aliases stand for more than MOST_VALUES
    values raises errors of many kinds."""
    value = yaml.load(text, Loader=_Loader)  # a safe one
    if _count(value, {}) > MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {MOST_VALUES} values")
    return value


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values a value would be if each alias were written out. known: counts of maps and
    lists by their id; one within itself counts as too many."""
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_VALUES
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(item, known) for item in inner)
    return known[id(value)]


def parse_yaml(text: str, path: str | Path) -> Any:
    """The same of the text of a file.

    Raises:
        InputError: "PATH: not valid YAML".
    """
    try:
        return load_yaml(text)
    except Exception as e:
        raise InputError(f"{path}: not valid YAML ({in_one_line(e)})") from None
