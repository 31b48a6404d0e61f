"""Classes of the same name, whatever its spelling."""

from collections.abc import Sequence


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
