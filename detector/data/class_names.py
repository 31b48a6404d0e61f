"""Class names of a data.yaml."""

from collections import Counter
from pathlib import Path
from typing import Any

from boltbox.detector.system.errors import InputError

MOST_CLASSES = 100_000  # that `nc` may promise without names


def read_names(path: Path, content: dict[str, Any]) -> list[str] | None:
    """The key `names` as a list; a map must have the keys 0 to n - 1. `nc` alone gives numbers.
    None if there is neither.

    Args:
        path: of the data.yaml, for messages. content: what it holds.

    Raises:
        InputError: it cannot be used.
    """
    names, count = content.get("names"), content.get("nc")
    if isinstance(names, dict):
        try:
            numbered = {int(k): v for k, v in names.items()}
        except (TypeError, ValueError, OverflowError):
            numbered = {}
        if sorted(numbered) != list(range(len(names))):
            raise InputError(f"{path}: `names` must have the keys 0 to {len(names) - 1}")
        names = [numbered[k] for k in range(len(numbered))]
    if names is None and isinstance(count, int):
        if count > MOST_CLASSES:
            raise InputError(
                f"{path}: nc is {count}, more than {MOST_CLASSES}; correct it, or give the class"
                " names as `names`"
            )
        names = list(range(count))
    if names is None:
        return None
    if not isinstance(names, list):
        raise InputError(f"{path}: `names` must be a list or a map of class names, not {names!r}")
    names = [str(n) for n in names]
    if len(set(names)) != len(names):
        twice = next(n for n, times in Counter(names).items() if times > 1)
        raise InputError(f"{path}: `names` holds '{twice}' twice; every class needs its own name")
    if count is not None and count != len(names):
        raise InputError(
            f"{path}: nc is {count}, but `names` has {len(names)} entries; leave nc out or"
            " correct it"
        )
    return names
