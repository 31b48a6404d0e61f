"""YOLOv5's genetic algorithm."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from optuna.trial import FrozenTrial

from boltbox.detector.commands.evolve.space import Gene

REACH = 0.2  # a mutation moves a gene by at most this share of its range


def fitness(trial: FrozenTrial) -> float:
    """-inf after a failure."""
    return -math.inf if trial.value is None else trial.value


class Schedule(NamedTuple):
    """How a generation makes children.

    Attributes:
        elites: best individuals, which are always in the pool of parents.
        tournament: individuals that compete for a place in the pool.
        crossover: probability that a child has two parents.
        mutation: probability that a gene changes.
    """

    elites: int
    tournament: int
    crossover: float
    mutation: float


def schedule(g: int, generations: int) -> Schedule:
    """The schedule of a generation: explore early, keep the best late.

    Args:
        g: generation, from 0.
        generations: in all.
    """
    return Schedule(
        elites=2 + math.floor(3 * g / generations),
        tournament=max(2, math.floor(10 - g / (generations / 10))),
        crossover=max(1 - g / generations, 0.5),
        mutation=max(0.5 - g / generations, 0.01),
    )


def child(
    rng: np.random.Generator,
    values: np.ndarray,
    fitness: np.ndarray,
    genes: Sequence[Gene],
    g: int,
    generations: int,
) -> np.ndarray:
    """Make a child of generation g.

    The pool of parents is the elite and the winners of tournaments. A child has one or two parents:
    with two, the genes before a random cut come from the first. Then genes mutate by at most a
    fifth of their range: on average at least one, and always one in a copy of an individual.

    Args:
        rng: source of all random choices.
        values: (m, n) of the population, each within its bounds.
        fitness: (m,) of the population; -inf after a failure.
        genes: n of them.
        g: generation, from 0.
        generations: in all.

    Returns:
        (n,) values of the child.
    """
    count, n = values.shape
    rates = schedule(g, generations)
    values = values[np.argsort(-fitness, kind="stable")]
    pool = list(range(min(rates.elites, max(count // 4, 1))))
    while len(pool) < count:
        rivals = rng.choice(count, min(rates.tournament, count), replace=False)
        pool.append(rivals.min())
    first, second = rng.choice(pool, 2, replace=False)
    new = values[first].copy()
    if n > 1 and rng.random() < rates.crossover:
        cut = rng.integers(1, n)
        new[cut:] = values[second, cut:]
    change = rng.uniform(-1, 1, new.shape)
    mutates = rng.random(new.shape) < max(rates.mutation, 1 / n)
    is_copy = (values == new).all(axis=1).any()
    mutates[rng.integers(n)] |= is_copy
    for k, gene in enumerate(genes):
        if mutates[k]:
            new[k] = gene.from_unit(gene.to_unit(new[k]) + REACH * change[k])
    return new


def next_values(
    genes: Sequence[Gene],
    ended: Sequence[FrozenTrial],
    number: int,
    population: int,
    generations: int,
    seed: int,
) -> dict[str, float]:
    """Choose the values of the next individual.

    It belongs to generation g if g x population others have ended before; no worker waits for
    another. Parents are the last `population` individuals that ended, and the best of all before;
    YOLOv5 uses only the last ones.

    Args:
        genes: of the study.
        ended: the individuals that have ended, by number.
        number: of the individual.
        population: individuals per generation.
        generations: in all.
        seed: of the study.

    Returns:
        Value by gene name.
    """
    rng = np.random.default_rng([seed, number])
    g = min(len(ended) // population, generations)
    if g == 0:
        row = np.array([gene.from_unit(rng.random()) for gene in genes])
    else:
        earlier = sorted(ended[:-population], key=fitness, reverse=True)
        elites = min(schedule(g - 1, generations).elites, population // 4)
        parents = list(ended[-population:]) + earlier[:elites]
        values = np.zeros((len(parents), len(genes)))
        for i, parent in enumerate(parents):
            values[i] = [parent.params[gene.name] for gene in genes]
        scores = np.array(list(map(fitness, parents)))
        row = child(rng, values, scores, genes, g - 1, generations)
    return {gene.name: gene.cast(x) for gene, x in zip(genes, row, strict=True)}
