"""Charts as inline SVG. Text and bars take their colours from the page's style sheet: classes `s0`,
`s1`, `s2` by split."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from boltbox.detector.report.html import render

WIDTH, HEIGHT = 360, 200  # of a histogram, in units that are about a pixel on a telephone
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 14, 16, 22
_TICKS = 7  # labels on an axis, at most
# so many of the commonest and of the rarest classes are drawn if there are more
COMMON, RARE = 25, 15
_NAME, _NAMES = 16, 112  # letters of a class name that fit in its column, and the column's width
_BAR = 10  # height of a bar of the class chart

Counts = Mapping[str, Sequence[int]]  # by split


def log_histogram(
    title: str,
    edges: Sequence[float],
    counts: Counts,
    ticks: Mapping[float, str],
    borders: Sequence[float],
) -> str:
    """A histogram of positive values.

    Args:
        title: what is counted, for those who cannot see it.
        edges: (n + 1,) of the bins, equally wide on a logarithmic scale. counts: (n,) for each
            split.
        ticks: label by value; where there is no room, every second, third, ... is drawn. borders:
            values to mark by a line.
    """
    logarithms = np.log2(edges)

    def bins(value: float) -> float:
        return float(np.interp(math.log2(value), logarithms, np.arange(len(edges))))

    names = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    labels = [
        (bins(value), text) for value, text in ticks.items() if edges[0] <= value <= edges[-1]
    ]
    lines = [(bins(value), f"{value:g}") for value in borders if edges[0] < value < edges[-1]]
    return _histogram(title, names, counts, labels, lines)


def count_histogram(title: str, edges: Sequence[int], counts: Counts) -> str:
    """A histogram of whole numbers; the bin from `edges[k]` holds those below `edges[k + 1]`."""
    names = [str(low) if high - low == 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    return _histogram(title, names, counts, [(k + 0.5, name) for k, name in enumerate(names)], [])


def _histogram(
    title: str,
    names: Sequence[str],
    counts: Counts,
    ticks: list[tuple[float, str]],
    lines: list[tuple[float, str]],
) -> str:
    """Bars side by side for each split, as shares of the split. `names`: of the bins; positions of
    ticks and lines in bins."""
    used = (
        np.flatnonzero(np.sum([np.asarray(c) for c in counts.values()], 0))
        if counts
        else np.zeros(0, int)
    )
    if not len(used):
        return ""
    # two of the empty bins on either side are kept
    first, last = max(int(used[0]) - 2, 0), min(int(used[-1]) + 3, len(names))
    step = (WIDTH - _LEFT - _RIGHT) / (last - first)
    floor, height = HEIGHT - _BOTTOM, HEIGHT - _BOTTOM - _TOP
    shares = {split: np.asarray(c) / max(sum(c), 1) for split, c in counts.items()}
    top = max(float(s.max()) for s in shares.values())
    width = step * 0.86 / len(counts)

    def x(position: float) -> float:
        return _LEFT + (position - first) * step

    bars = [
        {
            "split": k,
            "x": x(n) + step * 0.07 + k * width,
            "width": width,
            "height": max(height * share[n] / top, 1),
            "text": f"{split}, {names[n]}: {counts[split][n]} ({share[n]:.1%})",
        }
        for k, (split, share) in enumerate(shares.items())
        for n in range(first, last)
        if share[n]
    ]
    visible = [(x(position), text) for position, text in ticks if first <= position <= last]
    return render(
        "commands/doctor/templates/histogram.svg",
        title=title,
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        top=_TOP,
        floor=floor,
        levels=[(floor - height * level, f"{top * level:.0%}") for level in (0.5, 1.0)],
        bars=bars,
        lines=[(x(position), text) for position, text in lines if first < position < last],
        ticks=visible[:: math.ceil(len(visible) / _TICKS) or 1],
    )


def class_chart(title: str, names: Sequence[str], counts: Counts) -> str:
    """A row a class, the commonest first: its boxes in each split, as bar and number. Classes
    without any are only counted."""
    total = np.sum([np.asarray(c) for c in counts.values()], 0) if counts else np.zeros(0, int)
    if not len(names) or not total.any():
        return ""
    order = [c for c in np.argsort(-total, kind="stable").tolist() if total[c]]
    rows: list[Any] = [
        {
            "name": names[c],
            "short": names[c] if len(names[c]) <= _NAME else f"{names[c][: _NAME - 1]}…",
            "counts": {split: of_class[c] for split, of_class in counts.items()},
        }
        for c in order
    ]
    if len(rows) > COMMON + RARE:
        rows[COMMON:-RARE] = [f"... {len(rows) - COMMON - RARE} classes ..."]
    if len(order) < len(names):
        rows.append(f"{len(names) - len(order)} classes without a box")
    return render(
        "commands/doctor/templates/classes.svg",
        title=title,
        width=WIDTH,
        left=_NAMES,
        room=WIDTH - _NAMES - 52,
        bar=_BAR,
        rows=rows,
        row=_BAR * len(counts) + 7,
        longest=max(max(c) for c in counts.values()),
    )
