"""Tables of results."""

from collections.abc import Sequence


def markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown, from cells whose first row is the header."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    lines.insert(1, "|" + "---|" * len(cells[0]))
    return lines
