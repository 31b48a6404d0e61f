"""The figures of the pipeline study, for benchmark's table and picture."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from detector.commands.benchmark.picture import Panel

NAMES = {"one device": "one device", "gpipe": "two halves, GPipe", "1f1b": "two halves, 1F1B"}


class Timing(NamedTuple):
    """Seconds of the steps that were timed; `how` is one device, gpipe or 1f1b, with so many micro-batches a step."""

    how: str
    micro_batches: int
    seconds: list[float]

    @property
    def name(self) -> str:
        return "two halves" if self.how == "gpipe" and self.micro_batches == 1 else NAMES[self.how]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile in milliseconds."""
        low, middle, high = np.quantile(self.seconds, (0.25, 0.5, 0.75)) * 1e3
        return low, middle, high


def cells(timings: Sequence[Timing], batch: int) -> list[list[str]]:
    """Header and a row for each way."""
    whole = timings[0].quartiles[1]
    head = ["way", "micro-batches", "images each", "ms a step", "quartiles", "fastest", "images/s", "one device = 1"]
    table = [head]
    for t in timings:
        low, middle, high = t.quartiles
        milliseconds = [f"{middle:.0f}", f"{low:.0f} to {high:.0f}", f"{min(t.seconds) * 1e3:.0f}"]
        speed = [f"{batch / middle * 1e3:.1f}", f"{whole / middle:.2f}"]
        table.append([t.name, str(t.micro_batches), str(batch // t.micro_batches), *milliseconds, *speed])
    return table


def panels(timings: Sequence[Timing], batch: int) -> list[Panel]:
    """Step time with its quartiles, and speed.

    The marks are what halves of equal length with free transfers would take: the time of one device with the same micro-batches
    times (m + 1) / 2m, as each half waits for one of m micro-batches at the start or the end.
    """
    alone = {t.micro_batches: median(t.seconds) * 1e3 for t in timings if t.how == "one device"}
    ideal = [
        math.nan if t.how == "one device" else alone[t.micro_batches] * (t.micro_batches + 1) / (2 * t.micro_batches)
        for t in timings
    ]
    middles = [t.quartiles[1] for t in timings]
    spread = [(t.quartiles[0], t.quartiles[2]) for t in timings]
    return [
        Panel("ms a step", middles, "{:.0f}", spread, ideal, "equal halves, free transfers"),
        Panel("images/s", [batch / ms * 1e3 for ms in middles], "{:.1f}"),
        Panel("one device = 1", [middles[0] / ms for ms in middles], "{:.2f}"),
    ]
