"""Objects that would run something when a careless reader unpickles them."""

from typing import Any


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.content = function, arguments

    def __reduce__(self) -> tuple:
        return self.content

    def __call__(self) -> None:
        """Never called; the pickler only wants functions that look callable."""
