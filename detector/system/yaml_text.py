"""YAML that users give."""

from pathlib import Path
from typing import Any

import yaml

from boltbox.detector.system.errors import InputError, in_one_line

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
