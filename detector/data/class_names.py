"""Class names: as a data.yaml gives them, and which of two lists are the same."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.system.errors import InputError

MOST_NUMBERS = 10_000  # classes without names


def same_names(known: Sequence[str], names: Sequence[str]) -> dict[int, int]:
    """Number in `names` -> number in `known`, of classes with the same name but for case, spaces
    and the like; to the letter, where two classes of one list differ in these alone.

    >>> same_names(["person", "Traffic light"], ["traffic_light", "lamp"])
    {0: 1}
    >>> same_names(["A+", "A-", "b"], ["A-", "B"])
    {0: 1}
    """
    plain = [
        ["".join(filter(str.isalnum, name.casefold())) or name for name in each]
        for each in (known, names)
    ]
    if any(len(set(p)) < len(set(e)) for p, e in zip(plain, (known, names), strict=True)):
        plain = [[*known], [*names]]
    return {i: plain[0].index(name) for i, name in enumerate(plain[1]) if name in plain[0]}


def read_names(path: Path, content: Mapping[str, Any]) -> list[str]:
    """The key `names` as a list; a map must have the keys 0 to n - 1. `nc` alone gives numbers.
    Empty if there is neither. path: of the data.yaml, for messages.

    Raises:
        InputError: it cannot be used.
    """
    names, count = content.get("names"), content.get("nc")
    if names is None:
        if not isinstance(count, int):
            return []
        if count > MOST_NUMBERS:
            raise InputError(f"{path}: `nc` is {count}, above {MOST_NUMBERS}; give `names`")
        return [str(number) for number in range(count)]
    if isinstance(names, dict):
        numbered = {str(key): name for key, name in names.items()}
        names = [numbered.get(str(number)) for number in range(len(names))]
    if not isinstance(names, list) or None in names:
        raise InputError(
            f"{path}: `names` must be a list of class names, or a map with the keys 0, 1, 2, ..."
        )
    if switches := [name for name in names if isinstance(name, bool)]:
        raise InputError(
            f"{path}: `names` holds {switches[0]}, as which YAML reads words like yes, no, on, off;"
            " put the name in quotes"
        )
    names = [str(name) for name in names]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(
            f"{path}: `names` holds {twice[0]!r} twice; every class needs its own name"
        )
    if isinstance(count, int) and count != len(names):
        raise InputError(
            f"{path}: `nc` is {count}, but `names` holds {len(names)}; correct one, or leave nc out"
        )
    return names
