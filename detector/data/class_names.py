"""Classes of the same name, whoever wrote it."""

from collections.abc import Sequence


def same_names(known: Sequence[str], names: Sequence[str]) -> dict[int, int]:
    """Class here -> class there, of those with the same name but for case, spaces and the like.

    >>> same_names(["person", "Traffic light"], ["traffic_light", "lamp"])
    {0: 1}
    """
    plain = [
        ["".join(filter(str.isalnum, name.casefold())) or name for name in each]
        for each in (known, names)
    ]
    return {i: plain[0].index(name) for i, name in enumerate(plain[1]) if name in plain[0]}


def joined_names(known: Sequence[str], names: Sequence[str]) -> list[str]:
    """The known ones, then those that are new.

    >>> joined_names(["person", "car"], ["Car", "hat"])
    ['person', 'car', 'hat']
    """
    both = same_names(known, names)
    return [*known, *(name for i, name in enumerate(names) if i not in both)]
