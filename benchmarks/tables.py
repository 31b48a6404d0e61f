"""Tables of results in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def markdown(cells: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a table, from cells whose first row is the header."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in cells]
    lines.insert(1, "|" + "---|" * len(cells[0]))
    return lines


def print_header(*names: str) -> None:
    print("\n".join(markdown([names])), flush=True)


def print_row(*cells: Any) -> None:
    print(markdown([cells])[0], flush=True)


def race(rates: Mapping[str, Callable[[], float]], rounds: int = 5) -> None:
    """Measure each in turn, again and again, and print the medians and the ratios to the first.

    Args:
        rates: By name, what measures a rate per second.
        rounds: After a first one that warms up.
    """
    print_header("", "per second", "ratio", "lowest", "highest")
    measured = np.array([[rate() for rate in rates.values()] for _ in range(rounds + 1)])[1:]
    for name, numbers in zip(rates, medians_and_ratios(measured), strict=True):
        print_row(name, *(f"{number:.4g}" for number in numbers))


def medians_and_ratios(measured: np.ndarray) -> np.ndarray:
    """(n, 4) of (rounds, n) numbers: each median, and the median, the least and the greatest of the
    ratios to the first."""
    ratios = measured / measured[:, :1]
    columns = (np.median(measured, 0), np.median(ratios, 0), ratios.min(0), ratios.max(0))
    return np.column_stack(columns)
