"""Who chooses the next values: YOLOv5's genetic algorithm as an Optuna sampler, or one of Optuna's
own."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from boltbox.detector.commands.evolve.individual import ended, fitness, individuals, number
from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.space import Gene

REACH = 0.2  # a mutation moves a gene by at most this share of its range
LITERAL_REACH = 0.1  # in whatever unit the gene has


class Schedule(NamedTuple):
    """How children are made of a generation.

    Attributes:
        elites: best individuals, which are in the pool of parents in any case.
        tournament: individuals that compete for a place in the pool.
        crossover: probability that a child has two parents.
        mutation: probability that a gene changes.
    """

    elites: int
    tournament: int
    crossover: float
    mutation: float


def schedule(g: int, generations: int) -> Schedule:
    """That of generation g, from 0: early much is tried, later the best is kept."""
    return Schedule(
        elites=2 + math.floor(3 * g / generations),
        tournament=max(2, math.floor(10 - g / (generations / 10))),
        crossover=min(max(1 - g / generations, 0.5), 1.0),
        mutation=min(max(0.5 - g / generations, 0.01), 0.5),
    )


def random_values(rng: np.random.Generator, genes: Sequence[Gene]) -> np.ndarray:
    """(n,) uniform between the bounds, by the logarithm for log genes."""
    return np.array([gene.from_unit(rng.random()) for gene in genes])


def child(
    rng: np.random.Generator,
    values: np.ndarray,
    fitness: np.ndarray,
    genes: Sequence[Gene],
    g: int,
    generations: int,
    literal: bool = False,
) -> np.ndarray:
    """(n,) values of a child of generation g.

    The pool of parents is the elite and the winners of tournaments. A child has one or two parents:
    with two, the genes up to a random place are the first's. Then genes mutate.

    Args:
        values: (m, n) of the population, each within its bounds.
        fitness: (m,) of these; -inf after a failure.
        genes: n of them.
        literal: YOLOv5's mutation: at most 0.1 whatever the gene's unit. Otherwise at most a fifth
            of the gene's range, on average one gene mutates even late, and a copy mutates in any
            case.
    """
    count, n = values.shape
    plan, values = schedule(g, generations), values[np.argsort(-fitness, kind="stable")]
    pool = list(range(min(plan.elites, count if literal else max(count // 4, 1))))
    while len(pool) < count:
        rivals = rng.choice(count, min(plan.tournament, count), replace=False)
        pool.append(rivals.min())
    first, second = rng.choice(pool, 2, replace=False)
    new = values[first].copy()
    if n > 1 and rng.random() < plan.crossover:
        cut = rng.integers(1, n)
        new[cut:] = values[second, cut:]
    change, chance = rng.uniform(-1, 1, new.shape), rng.random(new.shape)
    mutated = chance < (plan.mutation if literal else max(plan.mutation, 1 / n))
    if not literal:
        mutated[rng.integers(n)] |= (values == new).all(axis=1).any()
    for k, gene in enumerate(genes):
        if not mutated[k]:
            continue
        if literal:
            new[k] = np.clip(new[k] + LITERAL_REACH * change[k], gene.low, gene.high)
        else:
            new[k] = gene.from_unit(gene.to_unit(new[k]) + REACH * change[k])
    return new


class GeneticSampler(optuna.samplers.BaseSampler):
    """YOLOv5's genetic algorithm.

    An individual belongs to generation g if g x population others have ended before it begins; no
    worker waits for another. Its parents are the individuals that ended last, as many as the
    population has, and the best of all before; YOLOv5's are the last ones alone.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(distributions(self.plan))

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        genes, evolve, found = self.plan.genes, self.plan.evolve, ended(individuals(study))
        rng = np.random.default_rng([self.plan.seed, number(trial)])
        g = min(len(found) // evolve.population, evolve.generations)
        if g == 0:
            row = random_values(rng, genes)
        else:
            earlier, parents = found[: -evolve.population], found[-evolve.population :]
            if not evolve.literal:
                elites = min(schedule(g - 1, evolve.generations).elites, evolve.population // 4)
                parents += sorted(earlier, key=fitness, reverse=True)[:elites]
            values = np.array([[t.params[gene.name] for gene in genes] for t in parents], float)
            scores = np.array([fitness(t) for t in parents])
            row = child(rng, values, scores, genes, g - 1, evolve.generations, evolve.literal)
        return {
            gene.name: float(x) if evolve.literal else gene.used(x)
            for gene, x in zip(genes, row, strict=True)
        }

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{name} is no gene of this study")


def sampler_for(plan: Plan, trials: int) -> optuna.samplers.BaseSampler:
    """The sampler that chooses an individual when a study has so many trials."""
    if plan.evolve.sampler == "tpe":
        seed = int(np.random.default_rng([plan.seed, trials]).integers(2**31))
        return optuna.samplers.TPESampler(seed=seed)
    return GeneticSampler(plan)


def distributions(plan: Plan) -> dict[str, IntDistribution | FloatDistribution]:
    """Of the genes, by name. YOLOv5 rounds whole numbers only where they are used."""
    return {
        gene.name: IntDistribution(round(gene.low), round(gene.high), log=gene.log)
        if gene.whole and not plan.evolve.literal
        else FloatDistribution(gene.low, gene.high, log=gene.log)
        for gene in plan.genes
    }
