"""Tables as text, and what stands in their cells."""

from collections.abc import Mapping, Sequence
from typing import Any

from boltbox.detector.evaluation.metrics import COLUMNS


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """For the terminal, the first row is the header: the first column to the left, the others to
    the right.

    >>> print(aligned([["row", "ms"], ["1", "12.5"]]))
    row    ms
    1    12.5
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip()
        for first, *others in cells
    )


def number(value: float | None) -> str:
    """A metric, which may be missing.

    >>> number(0.4567), number(None)
    ('0.457', '-')
    """
    return "-" if value is None else f"{value:.3f}"


def class_rows(content: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows of metrics.json's metrics: all classes together, then one by one if there are
    several."""
    rows = content["per_class"]
    return [["class", "objects", *COLUMNS]] + [
        [row["name"], str(row["objects"]), *(number(row[column]) for column in COLUMNS)]
        for row in [{"name": "all", **content}, *(rows if len(rows) > 1 else [])]
    ]


def class_table(content: Mapping[str, Any]) -> str:
    """The same for the terminal."""
    return aligned(class_rows(content))
