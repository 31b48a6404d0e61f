"""Individuals of an evolution that never ran."""

import numpy as np

from detector.commands.evolve.individual import Individual
from detector.commands.evolve.space import YOLOV5_GENES, Gene

GENES = [YOLOV5_GENES[name] for name in ("lr0", "anchors", "hsv_h", "mosaic", "warmup_epochs")]
METRICS = {
    "P": 0.75,
    "R": 0.5,
    "mAP50": 0.625,
    "mAP50-95": 0.375,
    "val/box_loss": 0.05,
    "val/obj_loss": 0.02,
    "val/cls_loss": 0.01,
}


def individual(number: int, genes: list[Gene] = GENES, fitness: float | None = None, population: int = 4, **more) -> Individual:
    """With values drawn between the bounds by its number; its fitness falls with the distance of hsv_h from 0.03."""
    rng = np.random.default_rng(number)
    values = {g.name: float(rng.uniform(g.low, g.high)) for g in genes}
    values |= {g.name: float(round(values[g.name])) for g in genes if g.whole}
    fitness = 0.4 - 30 * (values.get("hsv_h", 0.0) - 0.03) ** 2 + rng.normal() * 0.005 if fitness is None else fitness
    place = {"generation": number // population, "index": number % population}
    return Individual(
        **{"number": number, **place, "values": values, "state": "done", "fitness": fitness, "metrics": METRICS} | more
    )


def failed(number: int, genes: list[Gene] = GENES) -> Individual:
    told = individual(number, genes, state="failed", metrics={}, reason='the loss was not finite\nin epoch 3, "batch" 4')
    told.fitness = None
    return told
