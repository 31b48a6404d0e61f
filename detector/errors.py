"""The error for what a user can put right; `cli.main` prints it as one sentence and leaves with exit code 2."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Says what is wrong, where, and what to do."""


def in_one_line(error: BaseException) -> str:
    """What an error says; of one in a DataLoader's worker, which torch raises anew with its traceback, what it said there."""
    text = str(error)
    if text.startswith("Caught InputError in "):
        text = text.rpartition(f"{InputError.__module__}.InputError: ")[2]
    return " ".join(text.split())


def shortened(sentence: str, most: int = 2000) -> str:
    """A sentence without its middle, if what the user gave makes it longer than anyone reads."""
    return sentence if len(sentence) <= most else f"{sentence[: most // 2]} ... {sentence[-most // 2 :]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest one, or the list when nothing is near.

    Dotted names are compared with those of their group first; a part of a name counts too, so `wdth` finds `width_multiple`.
    """
    names = [str(k) for k in known]
    group, dot, leaf = word.rpartition(".")
    inside = [n for n in names if n.rpartition(".")[0] == group] if dot else names

    def likeness(name: str) -> float:
        own = name.rpartition(".")[2]
        return max(difflib.SequenceMatcher(None, leaf, part).ratio() for part in (own, *own.split("_")))

    best = max(inside, key=likeness, default="")
    if likeness(best) >= 0.6:
        return f"did you mean '{best}'?"
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose from {', '.join(names)}" if len(names) <= 20 else "see --help"
