"""Class names: those of a data.yaml, and which of two lists are the same."""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from boltbox.detector.system.configuration import plain
from boltbox.detector.system.errors import InputError

MOST_NUMBERS = 10_000  # classes without names


def same_names(known: Sequence[str], names: Sequence[str]) -> dict[int, int]:
    """Which classes of two lists are the same: their names are equal but for case and characters
    other than letters and digits. If two classes of one list differ only in these, names must be
    equal in every character.

    Args:
        known: class names.
        names: other class names.

    Returns:
        Index in `known` by index in `names`.

    >>> same_names(["person", "Traffic light"], ["traffic_light", "lamp"])
    {0: 1}
    >>> same_names(["A+", "A-", "b"], ["A-", "B"])
    {0: 1}
    """
    plain_known = list(map(_plain, known))
    plain_names = list(map(_plain, names))
    if len(set(plain_known)) < len(set(known)) or len(set(plain_names)) < len(set(names)):
        plain_known = list(known)
        plain_names = list(names)
    return {i: plain_known.index(n) for i, n in enumerate(plain_names) if n in plain_known}


def _plain(name: str) -> str:
    letters = "".join(filter(str.isalnum, name.casefold()))
    return letters if letters else name


def check_same_names(names: Sequence[str], expected: Sequence[str], file: object) -> None:
    """Raises InputError unless a file's classes are the expected ones, in the same order."""
    for i, (name, other) in enumerate(zip_longest(names, expected)):
        if name != other:
            raise InputError(
                f"{file}: it has other classes: class {i} is {other!r} here and {name!r} there"
            )


def list_of_names(names: Collection[str]) -> list[str]:
    """Class names, also those of a NumPy array, as a list.

    Raises:
        InputError: There are none, or they have no order.
    """
    if not len(names) or isinstance(names, set | frozenset):
        raise InputError(f"names {names!r}: give a list of names (--data.dataset FILE has one)")
    return list(plain(names))


def read_names(path: Path, content: Mapping[str, Any]) -> list[str]:
    """The class names of a data.yaml.

    Args:
        path: of the data.yaml, for messages.
        content: its keys. `names` is a list, or a map with the keys 0 to n - 1; `nc` alone gives
            numbers.

    Returns:
        Names in class order; empty if there is neither key.

    Raises:
        InputError: they cannot be used.
    """
    names = content.get("names")
    count = content.get("nc")
    if names is None:
        if not isinstance(count, int):
            return []
        if count > MOST_NUMBERS:
            raise InputError(f"{path}: `nc` is {count}, above {MOST_NUMBERS}; give `names`")
        return list(map(str, range(count)))
    if isinstance(names, dict):
        numbered = {str(key): name for key, name in names.items()}
        names = [numbered.get(str(number)) for number in range(len(names))]
    if not isinstance(names, list) or None in names:
        raise InputError(
            f"{path}: `names` must be a list of class names, or a map with the keys 0, 1, 2, ..."
        )
    for name in names:
        if isinstance(name, bool):
            raise InputError(
                f"{path}: `names` holds {name}, as which YAML reads words like yes, no, on, off;"
                " put the name in quotes"
            )
    names = list(map(str, names))
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: `names` holds {name!r} twice; rename one class")
    if isinstance(count, int) and count != len(names):
        raise InputError(
            f"{path}: `nc` is {count}, but `names` holds {len(names)}; correct one, or leave nc out"
        )
    return names
