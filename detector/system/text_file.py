"""Text and YAML files that users give."""

from pathlib import Path
from typing import Any

import yaml

from boltbox.detector.system.errors import InputError, in_one_line

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: str | Path, replace: bool = False) -> str:
    """The text of a file, without the mark that editors put before UTF-8.

    Args:
        replace: bytes that are no UTF-8 become replacement characters, and zero bytes stay, instead
            of being an error.

    Raises:
        InputError: "PATH: why": there is no such file, or it is no text.
    """
    try:
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
    not fit (`!!bool x`), or that is nested too deep raises errors of many kinds."""
    return yaml.load(text, Loader=_Loader)  # a safe one


def parse_yaml(text: str, path: str | Path) -> Any:
    """The same of the text of a file.

    Raises:
        InputError: "PATH: not valid YAML".
    """
    try:
        return load_yaml(text)
    except Exception as e:
        raise InputError(f"{path}: not valid YAML ({in_one_line(e)})") from None
