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
    lines = []
    for first, *others in cells:
        numbers = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)


def number(value: object) -> str:
    """A metric, which may be missing.

    >>> number(0.4567), number(None)
    ('0.457', '-')
    """
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


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
