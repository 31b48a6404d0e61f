"""A recipe against the first one, from paired trainings: means, interval, when it passed the
other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.recipes.training import Figures

SAMPLES = 10_000  # of the bootstrap
Runs = Mapping[str, Mapping[int, Figures]]  # data set -> seed -> figures


@dataclass(frozen=True)
class Verdict:
    """gains: data set -> mean over seeds of the differences in AP, in hundredths · interval: of the
    mean of these, 95 % · passed: data set -> see `first_pass` · parameters: ratio."""

    gains: Mapping[str, float]
    interval: tuple[float, float]
    passed: Mapping[str, tuple[float, float] | None]
    parameters: float

    @property
    def macro(self) -> float:
        """Mean over data sets."""
        return float(np.mean(list(self.gains.values())))

    @property
    def worst(self) -> str:
        return min(self.gains, key=lambda name: self.gains[name])


def judge(base: Runs, other: Runs) -> Verdict:
    """Compare by what both were trained on: the same data set and the same seed.

    Raises:
        ValueError: there is no such pair.
    """
    pairs = {name: sorted(base[name].keys() & other[name].keys()) for name in base if name in other}
    pairs = {name: seeds for name, seeds in pairs.items() if seeds}
    if not pairs:
        raise ValueError("no data set and seed that both were trained on")
    gaps = [
        np.array([100 * (other[name][s].score - base[name][s].score) for s in seeds])
        for name, seeds in pairs.items()
    ]
    gains = {name: float(gap.mean()) for name, gap in zip(pairs, gaps, strict=True)}
    sides = {
        name: ([base[name][s] for s in seeds], [other[name][s] for s in seeds])
        for name, seeds in pairs.items()
    }
    passed = {name: first_pass(*both) for name, both in sides.items()}
    ratios = [
        other[name][s].parameters / base[name][s].parameters
        for name, seeds in pairs.items()
        for s in seeds
    ]
    return Verdict(gains, interval(gaps), passed, max(ratios))


def interval(gaps: Sequence[np.ndarray], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean over data sets of the mean over seeds, by a bootstrap of two
    stages: data sets are drawn with replacement, then seeds within each (Efron and Tibshirani 1993,
    An Introduction to the Bootstrap, chapter 8)."""
    rng = np.random.default_rng(seed)
    shape = SAMPLES, len(gaps)
    drawn = rng.integers(len(gaps), size=shape)
    means = np.empty(shape)
    for i, gap in enumerate(gaps):
        chosen = drawn == i
        means[chosen] = gap[rng.integers(len(gap), size=(int(chosen.sum()), len(gap)))].mean(1)
    low, high = np.percentile(means.mean(1), (2.5, 97.5))
    return float(low), float(high)


def first_pass(base: Sequence[Figures], other: Sequence[Figures]) -> tuple[float, float] | None:
    """When the mean curve of `other` first reaches the last value of the mean curve of `base`, as
    shares of the epochs and the seconds that `base` took; None: never."""
    ours = mean_curve(other)
    theirs = mean_curve(base)
    reached = np.flatnonzero(ours[:, 2] >= theirs[-1, 2])
    if not len(reached):
        return None
    epoch, seconds, _ = ours[reached[0]]
    return float(epoch / theirs[-1, 0]), float(seconds / theirs[-1, 1])


def mean_curve(runs: Sequence[Figures]) -> np.ndarray:
    """(n, 3) epoch, seconds, AP: means over runs, up to the shortest one's last epoch."""
    shortest = min(len(run.curve) for run in runs)
    return np.mean([run.curve[:shortest] for run in runs], axis=0)
