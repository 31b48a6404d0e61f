"""The error for what a user can put right; `cli.main` prints it as one sentence and exits with
code 2."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

SIMILAR = 0.6  # likeness from which on a name may have been meant


class InputError(ValueError):
    """Says what is wrong, where, and what to do."""


class Unreachable(Exception):
    """A server does not give what it should. No file is at fault, so none may be left out."""


def in_one_line(error: BaseException) -> str:
    """The message of an error. For an error of ours in a DataLoader's worker, which torch raises
    again with its traceback, the message there."""
    text = str(error)
    kind = type(error)
    if kind in (InputError, Unreachable) and text.startswith(f"Caught {kind.__name__} in "):
        text = text.rpartition(f"{kind.__module__}.{kind.__name__}: ")[2]
    return " ".join(text.split())


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one or, if none is near, all of them.

    Args:
        word: The name. If it is dotted, names of its group come first, then names elsewhere.
        known: The names to choose from. One that begins with the word is near, and so is one with a
            part like it: `wdth` finds `width_multiple`.
    """
    names = [str(name) for name in known]
    group, dot, leaf = word.rpartition(".")
    names_of_group = [name for name in names if name.startswith(group + dot)]
    for candidates in (names_of_group, names):
        ordered = sorted(candidates, key=lambda name: (len(name), name))
        best = max(ordered, key=lambda name: _likeness(leaf, name), default="")
        if _likeness(leaf, best) >= SIMILAR:
            return f"did you mean '{best}'?"
    return f"choose from {', '.join(names)}" if len(names) <= 20 else "see --help"


def _likeness(word: str, name: str) -> float:
    """Of a word and the last part of a dotted name, 0 to 3.

    >>> _likeness("lr", "model.optim.lr0"), _likeness("fti", "fit") >= SIMILAR
    (2.0, True)
    """
    leaf = name.rpartition(".")[2]
    if not word or not leaf:
        return 0.0
    if leaf == word:
        return 3.0
    if leaf.startswith(word):
        return 2.0
    parts = [leaf, *leaf.split("_")]
    return max(difflib.SequenceMatcher(None, word, part).ratio() for part in parts)


def need(module: str, where: str = "this", extra: str = "") -> Any:
    """Import an optional package.

    Args:
        module: The package, whose name pip knows too, or a module of it.
        where: The option that needs it.
        extra: Of pyproject.toml, with the package and what goes with it.

    Raises:
        InputError: It is not installed, or does not fit another package.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        reason = in_one_line(e)
        wanted = f'"boltbox[{extra}]"' if extra else f"--upgrade {module.partition('.')[0]}"
        raise InputError(f"{where} needs: pip install {wanted} ({reason})") from None
