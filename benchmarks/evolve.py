"""The samplers of `evolve` on a formula in place of the training.

python -m benchmarks.evolve

Fitness is exp(-q), 1 at the optimum, with q a quadratic form of the 13 default genes: each has an
optimum of its own, off the centre of its bounds, and a width of its own, and neighbours interact.
Every search starts from random individuals.
"""

import numpy as np
import optuna
from jsonargparse import auto_cli

from benchmarks.tables import print_header, print_row
from boltbox.detector.commands.evolve.genetic import next_values
from boltbox.detector.commands.evolve.space import EVOLVED, YOLOV5_GENES

GENES = tuple(YOLOV5_GENES[name] for name in EVOLVED)
# within 0..1 of the bounds
OPTIMUM = np.array([0.15, 0.78, 0.44, 0.3, 0.2, 0.55, 0.35, 0.25, 0.82, 0.6, 0.85, 0.12, 0.7])
WIDTH = np.array([0.5, 0.3, 0.4, 0.25, 0.6, 0.35, 0.5, 0.3, 0.45, 0.6, 0.25, 0.4, 0.55])
SHARPNESS = 2.0
INTERACTION = 0.6


def fitness(values: dict[str, float]) -> float:
    """1 at the optimum, 0 far away."""
    unit = np.array([(values[gene.name] - gene.low) / (gene.high - gene.low) for gene in GENES])
    off = (unit - OPTIMUM) / WIDTH
    return float(np.exp(-SHARPNESS * ((off**2).mean() + INTERACTION * (off[:-1] * off[1:]).mean())))


def search(sampler: str, population: int, generations: int, seed: int) -> list[float]:
    """Best fitness after each evaluation."""
    of_tpe = int(np.random.default_rng([seed, 0]).integers(2**31))
    others: dict[str, optuna.samplers.BaseSampler] = {
        "random": optuna.samplers.RandomSampler(seed),
        "tpe": optuna.samplers.TPESampler(seed=of_tpe),
        "nsgaii": optuna.samplers.NSGAIISampler(population_size=population, seed=seed),
    }
    study = optuna.create_study(direction="maximize", sampler=others.get(sampler))
    best = []
    for number in range(population * generations):
        if sampler == "yolov5":
            values = next_values(GENES, study.trials, number, population, generations, seed)
            study.enqueue_trial(values)
        trial = study.ask()
        values = {gene.name: trial.suggest_float(gene.name, gene.low, gene.high) for gene in GENES}
        study.tell(trial, fitness(values))
        best.append(study.best_value)
    return best


def main(seeds: int = 10) -> None:
    """Compare samplers.

    Args:
        seeds: Searches of each.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print_header(
        "size", "sampler", "reached: mean", "worst seed", "seeds at 95 %", "after (median)"
    )
    for population, generations in ((50, 20), (12, 10), (12, 5)):
        for sampler in ("random", "yolov5", "tpe", "nsgaii"):
            best = np.array([search(sampler, population, generations, k) for k in range(seeds)])
            ends = best[:, -1]
            there = int((ends >= 0.95).sum())
            after = np.median((best < 0.95).sum(1) + 1) if there == seeds else "-"
            size = f"{population} x {generations}"
            print_row(size, sampler, f"{ends.mean():.3f}", f"{ends.min():.3f}", there, after)


if __name__ == "__main__":
    auto_cli(main)
