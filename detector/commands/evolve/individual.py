"""One set of hyper-parameters and what came of it."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Individual:
    """A trained (or training) set of hyper-parameters.

    Attributes:
        number: of the trial, in the order in which they were begun.
        generation, index: place in the population; generation is 0 for samplers without generations.
        values: gene name -> value.
        state: what became of it.
        fitness: what is maximised; a mean over seeds if there are several; None until it is done, or if it failed.
        figures: of the training's best epoch: P, R, mAP50, mAP50-95, val/box_loss, val/obj_loss, val/cls_loss, ...
        reason: why it failed or was cut short, in a sentence.
        seconds: the training took.
    """

    number: int
    generation: int
    index: int
    values: dict[str, float]
    state: Literal["running", "done", "pruned", "failed"] = "running"
    fitness: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
