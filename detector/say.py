"""Telling the user something, once, whatever the number of processes."""


def say(text: str) -> None:
    """Print on the first process alone."""
    from lightning.fabric.utilities import rank_zero_only  # takes seconds, which a process that says nothing need not spend

    rank_zero_only(print)(text)
