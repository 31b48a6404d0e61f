"""Tables of measurements as text, from cells whose first row is the header."""

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines for the terminal, columns to the right.

    >>> aligned([["row", "ms"], ["1", "12.5"]])
    ['row    ms', '  1  12.5']
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]


def markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown.

    >>> markdown([["row", "ms"], ["1", "12.5"]])
    ['| row | ms |', '|---|---|', '| 1 | 12.5 |']
    """
    head, *rows = ["| " + " | ".join(row) + " |" for row in cells]
    return [head, "|" + "---|" * len(cells[0]), *rows]
