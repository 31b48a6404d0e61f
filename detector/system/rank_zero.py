"""Telling the user something, once, whatever the number of processes."""

from collections.abc import Callable

makes_way: Callable[[], None] | None = None  # a progress bar, from the line that it stands on


def rank_zero_print(text: str) -> None:
    """Print on the first process alone."""
    from lightning.fabric.utilities import rank_zero_only  # takes seconds, which a process that says nothing need not spend

    rank_zero_only(_print)(text)


def _print(text: str) -> None:
    if makes_way:
        makes_way()
    print(text, flush=True)
