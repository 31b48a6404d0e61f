"""One set of hyper-parameters and what came of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

State = Literal["running", "done", "pruned", "failed"]


@dataclass
class Individual:
    """A trained (or training) set of hyper-parameters.

    Attributes:
        number: of the trial, in the order in which they were begun.
        generation, index: place in the population; generation is 0 for samplers without generations.
        values: gene name -> value.
        state: what became of it.
        fitness: what is maximised; a mean over seeds if there are several; None until it is done, or if it failed.
        metrics: of the training's best epoch: P, R, mAP50, mAP50-95, val/box_loss, val/obj_loss, val/cls_loss, ...
        reason: why it failed or was cut short, in a sentence.
        seconds: the training took.
    """

    number: int
    generation: int
    index: int
    values: dict[str, float]
    state: State = "running"
    fitness: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


def done(individuals: Sequence[Individual]) -> list[Individual]:
    """Those whose training came to its end with a fitness, by trial number. The fitness of one that was cut short is of fewer
    epochs and is not compared with theirs."""
    whole = [i for i in individuals if i.state == "done" and i.fitness is not None and math.isfinite(i.fitness)]
    return sorted(whole, key=lambda i: i.number)


def best(individuals: Sequence[Individual]) -> Individual | None:
    """The fittest of those that are done, among equals the earliest."""
    return max(done(individuals), key=lambda i: i.fitness or 0.0, default=None)
