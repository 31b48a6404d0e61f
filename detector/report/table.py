"""Tables as text, and what is in their cells."""

from collections.abc import Sequence
from typing import Any

from tqdm.utils import disp_len

from boltbox.detector.evaluation.metrics import COLUMNS


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """A table for the terminal, whose first row is the header: the first column to the left, the
    others to the right.

    Args:
        cells: Rows of equal length.

    Returns:
        Lines of text.

    >>> print(aligned([["row", "ms"], ["猫", "12.5"]]))
    row    ms
    猫   12.5
    """
    widths = [max(map(disp_len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        line = ""
        for text, width in zip(row, widths, strict=True):
            space = " " * (width - disp_len(text))  # a Chinese letter takes two columns
            line += f"  {space}{text}" if line else text + space
        lines.append(line.rstrip())
    return "\n".join(lines)


def number(value: float | None) -> str:
    """A metric, which may be missing.

    Args:
        value: The metric.

    >>> number(0.4567), number(None)
    ('0.457', '-')
    """
    return "-" if value is None else f"{value:.3f}"


def class_rows(content: dict[str, Any]) -> list[list[str]]:
    """Header and rows of the metrics in metrics.json: all classes together, then one by one if
    there are several.

    Args:
        content: Of metrics.json.

    Returns:
        Rows of cells.
    """
    rows = [content | {"name": "all"}]
    if len(content["per_class"]) > 1:
        rows += content["per_class"]
    table = [["class", "objects", *COLUMNS]]
    for row in rows:
        metrics = [number(row[column]) for column in COLUMNS]
        table.append([row["name"], str(row["objects"])] + metrics)
    return table


def class_table(content: dict[str, Any]) -> str:
    """The same for the terminal.

    Args:
        content: Of metrics.json.

    Returns:
        Lines of text.
    """
    return aligned(class_rows(content))
