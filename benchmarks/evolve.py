"""The samplers of `evolve` on a formula in place of the training.

python -m benchmarks.evolve

Fitness is exp(-q), 1 at the optimum, with q a quadratic form of the 13 default genes: each has an
optimum of its own, off the centre of its bounds, and a width of its own, and neighbours interact.
Every search starts from random individuals.
"""

import argparse

import numpy as np
import optuna

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
    count = population * generations
    others: dict[str, optuna.samplers.BaseSampler] = {
        "random": optuna.samplers.RandomSampler(seed),
        "tpe": optuna.samplers.TPESampler(
            seed=int(np.random.default_rng([seed, 0]).integers(2**31))
        ),
        "nsgaii": optuna.samplers.NSGAIISampler(population_size=population, seed=seed),
    }
    study = optuna.create_study(direction="maximize", sampler=others.get(sampler))
    for number in range(count):
        if sampler == "yolov5":
            values = next_values(GENES, study.trials, number, population, generations, seed)
            study.enqueue_trial(values)
        trial = study.ask()
        values = {gene.name: trial.suggest_float(gene.name, gene.low, gene.high) for gene in GENES}
        study.tell(trial, fitness(values))
    return list(np.maximum.accumulate([trial.value or 0.0 for trial in study.trials]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sizes", default="50x20,12x10", help="population x generations")
    parser.add_argument("--samplers", default="random,yolov5,tpe,nsgaii")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(
        "| population x generations | sampler | evaluations | reached: mean | worst seed | seeds at"
        " 95 % | after (median) |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for shape in options.sizes.split(","):
        population, generations = map(int, shape.split("x"))
        for sampler in options.samplers.split(","):
            curves = []
            for seed in range(options.seeds):
                curves.append(search(sampler, population, generations, seed))
            best = np.array(curves)  # (seeds, evaluations)
            ends = best[:, -1]
            there = ends >= 0.95
            median = f"{np.median((best < 0.95).sum(1) + 1):.0f}" if there.all() else "-"
            cells = [f"{population} x {generations}", sampler, str(best.shape[1])]
            cells += [f"{ends.mean():.3f}", f"{ends.min():.3f}"]
            cells += [f"{there.sum()} of {len(there)}", median]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
