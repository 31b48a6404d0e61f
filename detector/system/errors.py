"""The error for what a user can put right; `cli.main` prints it as one sentence and leaves with
exit code 2."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

LIKE = 0.6  # words that are so alike may be meant


class InputError(ValueError):
    """Says what is wrong, where, and what to do."""


def in_one_line(error: BaseException) -> str:
    """What an error says; of one in a DataLoader's worker, which torch raises anew with its
    traceback, what it said there."""
    text = str(error)
    if text.startswith("Caught InputError in "):
        text = text.rpartition(f"{InputError.__module__}.InputError: ")[2]
    return " ".join(text.split())


def shortened(sentence: str, most: int = 2000) -> str:
    """A sentence without its middle, if what the user gave makes it longer than anyone reads."""
    return (
        sentence
        if len(sentence) <= most
        else f"{sentence[: most // 2]} ... {sentence[-most // 2 :]}"
    )


def one_of(words: Sequence[str]) -> str:
    """
    >>> one_of(["a", "b", "c"]), one_of(["a"])
    ('a, b or c', 'a')
    """
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def nearest(word: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """A hint for a name that is not known: the nearest one, or the list when nothing is near.

    Dotted names are compared with those of their group first. Names that begin with the word come
    before those that are a letter or two away; then parts of a name count too, so `wdth` finds
    `width_multiple`.

    Args:
        also: further words for the names, not seen in lists.
    """
    names = [str(k) for k in known]
    if also and word in also:
        return f"did you mean '{also[word]}'?"
    group, dot, leaf = word.rpartition(".")
    inside = [n for n in names if n.startswith(f"{group}.")] if dot else names
    best = max(
        sorted(inside, key=lambda name: (len(name), name)),
        key=lambda name: _likeness(leaf, name),
        default="",
    )
    if _likeness(leaf, best) < LIKE:
        elsewhere = difflib.get_close_matches(
            word, [n for n in names if n.rpartition(".")[2] == leaf], n=1, cutoff=0
        )
        best = next(
            iter([*elsewhere, *difflib.get_close_matches(word, names, n=1, cutoff=LIKE)]), ""
        )
    if best:
        return f"did you mean '{best}'?"
    return f"choose from {', '.join(names)}" if len(names) <= 20 else "see --help"


def _likeness(word: str, name: str) -> float:
    """Of a word and the last part of a dotted name; from LIKE on they are alike."""
    own = name.rpartition(".")[2]
    if not word or not own:
        return 0.0
    if own.startswith(word):
        return 3 - len(own) / 100
    apart = _distance(word, own)
    if apart <= max(len(word) // 3, 1) < len(own):
        return 2 - apart / 10
    return max(difflib.SequenceMatcher(None, word, part).ratio() for part in (own, *own.split("_")))


def _distance(one: str, other: str) -> int:
    """Letters to insert, delete, change or swap with their neighbour (optimal string alignment).

    >>> _distance("fti", "fit"), _distance("lr", "lr0"), _distance("exprt", "export")
    (1, 1, 1)
    """
    rows = [list(range(len(other) + 1))]
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]
