"""Which individuals count, and which is the best."""

import math
from collections.abc import Sequence

from detector.commands.evolve.individual import Individual


def done(individuals: Sequence[Individual]) -> list[Individual]:
    """Those whose training came to its end with a fitness, by trial number. The fitness of one that was cut short is of fewer
    epochs and is not compared with theirs."""
    whole = [i for i in individuals if i.state == "done" and i.fitness is not None and math.isfinite(i.fitness)]
    return sorted(whole, key=lambda i: i.number)


def best(individuals: Sequence[Individual]) -> Individual | None:
    """The fittest of those that are done, among equals the earliest."""
    return max(done(individuals), key=lambda i: i.fitness or 0.0, default=None)
