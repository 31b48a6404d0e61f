"""The error for what a user can put right; `cli.main` prints it as one sentence and leaves with exit code 2."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Says what is wrong, where, and what to do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest one, or the list when nothing is near."""
    names = [str(k) for k in known]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"choose from {', '.join(names)}"
