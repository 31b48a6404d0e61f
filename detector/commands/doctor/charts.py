"""Charts as inline SVG. Text and bars take their colours from the page's style sheet: classes `s0`, `s1`, `s2` by split."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

import numpy as np

WIDTH, HEIGHT = 360, 200  # of a histogram, in units that are about a pixel on a telephone
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 14, 16, 22
_TICKS = 7  # labels on an axis, at most
COMMON, RARE = 25, 15  # so many of the commonest and of the rarest classes are drawn if there are more
_NAME = 16  # letters of a class name that fit in its column
_BAR = 10  # height of a bar of the class chart

Counts = Mapping[str, Sequence[int]]  # by split


def log_histogram(
    title: str, edges: Sequence[float], counts: Counts, ticks: Mapping[float, str], borders: Sequence[float]
) -> str:
    """A histogram of positive values.

    Args:
        title: what is counted, for those who cannot see it.
        edges: (n + 1,) of the bins, equally wide on a logarithmic scale. counts: (n,) for each split.
        ticks: label by value; where there is no room, every second, third, ... is drawn. borders: values to mark by a line.
    """
    logarithms = np.log2(edges)

    def bins(value: float) -> float:
        return float(np.interp(math.log2(value), logarithms, np.arange(len(edges))))

    names = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    labels = [(bins(value), text) for value, text in ticks.items() if edges[0] <= value <= edges[-1]]
    lines = [(bins(value), f"{value:g}") for value in borders if edges[0] < value < edges[-1]]
    return _histogram(title, names, counts, labels, lines)


def count_histogram(title: str, edges: Sequence[int], counts: Counts) -> str:
    """A histogram of whole numbers; the bin from `edges[k]` holds those below `edges[k + 1]`."""
    names = [str(low) if high - low == 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]
    return _histogram(title, names, counts, [(k + 0.5, name) for k, name in enumerate(names)], [])


def _histogram(
    title: str, names: Sequence[str], counts: Counts, ticks: list[tuple[float, str]], lines: list[tuple[float, str]]
) -> str:
    """Bars side by side for each split, as shares of the split. `names`: of the bins; positions of ticks and lines in bins."""
    used = np.flatnonzero(np.sum([np.asarray(c) for c in counts.values()], 0)) if counts else np.zeros(0, int)
    if not len(used):
        return ""
    first, last = max(int(used[0]) - 2, 0), min(int(used[-1]) + 3, len(names))  # two of the empty bins on either side are kept
    step = (WIDTH - _LEFT - _RIGHT) / (last - first)
    floor, height = HEIGHT - _BOTTOM, HEIGHT - _BOTTOM - _TOP
    shares = {split: np.asarray(c) / max(sum(c), 1) for split, c in counts.items()}
    top = max(float(s.max()) for s in shares.values())

    def x(position: float) -> float:
        return _LEFT + (position - first) * step

    parts = []
    for level in (0.5, 1.0):
        y = floor - height * level
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{top * level:.0%}</text>')
    bar = step * 0.86 / len(counts)
    for k, (split, of_bin) in enumerate(shares.items()):
        for n in range(first, last):
            if of_bin[n]:
                tall = max(height * of_bin[n] / top, 1)
                what = escape(f"{split}, {names[n]}: {counts[split][n]} ({of_bin[n]:.1%})")
                parts.append(
                    f'<rect class="s{k}" x="{x(n) + step * 0.07 + k * bar:.1f}" y="{floor - tall:.1f}" width="{bar:.1f}" '
                    f'height="{tall:.1f}"><title>{what}</title></rect>'
                )
    for position, text in lines:
        if first < position < last:
            parts.append(f'<path class="border" d="M{x(position):.1f} {_TOP}V{floor}"/>')
            parts.append(f'<text x="{x(position):.1f}" y="{_TOP - 4}" text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {floor}H{WIDTH - _RIGHT}"/>')
    visible = [(position, text) for position, text in ticks if first <= position <= last]
    for position, text in visible[:: math.ceil(len(visible) / _TICKS) or 1]:
        parts.append(f'<text x="{x(position):.1f}" y="{floor + 15}" text-anchor="middle">{escape(text)}</text>')
    return _svg(title, HEIGHT, parts)


def class_chart(title: str, names: Sequence[str], counts: Counts) -> str:
    """A row a class, the commonest first: its boxes in each split, as bar and number. Classes without any are only counted."""
    total = np.sum([np.asarray(c) for c in counts.values()], 0) if counts else np.zeros(0, int)
    if not len(names) or not total.any():
        return ""
    order = [c for c in np.argsort(-total, kind="stable").tolist() if total[c]]
    rows: list[int | str] = list(order)
    if len(order) > COMMON + RARE:
        rows = [*order[:COMMON], f"... {len(order) - COMMON - RARE} classes ...", *order[-RARE:]]
    if len(order) < len(names):
        rows.append(f"{len(names) - len(order)} classes without a box")
    longest = max(max(c) for c in counts.values())
    left, room, row = 112, WIDTH - 112 - 52, _BAR * len(counts) + 7
    parts = []
    for at, c in enumerate(rows):
        y = at * row
        if isinstance(c, str):
            parts.append(f'<text x="{left}" y="{y + row / 2 + 4:.1f}">{c}</text>')
            continue
        name = names[c] if len(names[c]) <= _NAME else names[c][: _NAME - 1] + "…"
        hint = f"<title>{escape(names[c])}</title>"
        parts.append(f'<text x="{left - 6}" y="{y + row / 2 + 4:.1f}" text-anchor="end">{hint}{escape(name)}</text>')
        for k, (split, of_class) in enumerate(counts.items()):
            wide = max(room * of_class[c] / longest, 1) if of_class[c] else 0
            top = y + 3 + k * _BAR
            what = escape(f"{names[c]}, {split}: {of_class[c]}")
            parts.append(
                f'<rect class="s{k}" x="{left}" y="{top}" width="{wide:.1f}" height="{_BAR - 1}"><title>{what}</title></rect>'
                f'<text class="small" x="{left + wide + 3:.1f}" y="{top + _BAR - 2}">{of_class[c]}</text>'
            )
    return _svg(title, row * len(rows), parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
