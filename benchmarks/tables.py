"""Tables of results."""

from collections.abc import Sequence


def markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown, from cells whose first row is the header."""
    head, *rows = ["| " + " | ".join(row) + " |" for row in cells]
    return [head, "|" + "---|" * len(cells[0]), *rows]
