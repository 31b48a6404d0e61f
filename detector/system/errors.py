"""The error for what a user can put right; `cli.main` prints it as one sentence and leaves with
exit code 2."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

LIKE = 0.6  # words that are so alike may be meant


class InputError(ValueError):
    """Says what is wrong, where, and what to do."""


def in_one_line(error: BaseException) -> str:
    """What an error says; of one in a DataLoader's worker, which torch raises again with its
    traceback, what it said there."""
    text = str(error)
    if text.startswith("Caught InputError in "):
        text = text.rpartition(f"{InputError.__module__}.InputError: ")[2]
    return " ".join(text.split())


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest one, or the list when nothing is near.

    Dotted names are compared with those of their group first, then with the same name elsewhere.
    Names that begin with the word come first; parts of a name count too, so `wdth` finds
    `width_multiple`.
    """
    names = [str(k) for k in known]
    group, dot, leaf = word.rpartition(".")
    inside = [name for name in names if name.startswith(group + dot)]
    for candidates in (inside, names):
        ordered = sorted(candidates, key=lambda name: (len(name), name))
        best = max(ordered, key=lambda name: _likeness(leaf, name), default="")
        if _likeness(leaf, best) >= LIKE:
            return f"did you mean '{best}'?"
    return f"choose from {', '.join(names)}" if len(names) <= 20 else "see --help"


def _likeness(word: str, name: str) -> float:
    """Of a word and the last part of a dotted name; from LIKE on they are alike.

    >>> _likeness("lr", "model.optim.lr0"), _likeness("fti", "fit") >= LIKE
    (2.0, True)
    """
    leaf = name.rpartition(".")[2]
    if not word or not leaf:
        return 0.0
    if leaf.startswith(word):
        return 3.0 if leaf == word else 2.0
    parts = (leaf, *leaf.split("_"))
    return max(difflib.SequenceMatcher(None, word, part).ratio() for part in parts)


def need(package: str, where: str = "this") -> Any:
    """An optional package. where: the option that asks for it.

    Raises:
        InputError: it is not installed, or does not fit another one.
    """
    try:
        return importlib.import_module(package)
    except ImportError as e:
        reason = in_one_line(e)
        raise InputError(f"{where} needs: pip install --upgrade {package} ({reason})") from None
