"""YOLOv5's genetic algorithm: pure functions of a random generator and of what earlier generations found."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from detector.commands.evolve.space import Gene

REACH = 0.2  # of a mutation: up or down by so much of the gene's range at most
LITERAL_REACH = 0.1  # in whatever unit the gene has


class Schedule(NamedTuple):
    """How children are made of a generation. elites: best ones that are in the pool in any case · tournament: individuals that
    compete for a place in the pool · crossover: probability of a child to have two parents · mutation: of a gene to change."""

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


def survivors(g: int, generations: int, population: int, literal: bool) -> int:
    """How many of generation g live on unchanged in the next: the elites, but no more than a quarter. YOLOv5: none."""
    return 0 if literal else min(schedule(g, generations).elites, max(population // 4, 1))


def size(g: int, generations: int, population: int, literal: bool) -> int:
    """Individuals of generation g that are new, and to be trained."""
    return population - (survivors(g - 1, generations, population, literal) if g else 0)


def ranked(fitness: np.ndarray) -> np.ndarray:
    """Places, best first; of equals the first comes first. -inf, a training that failed, is last."""
    return np.argsort(-fitness, kind="stable")


def first_generation(
    rng: np.random.Generator, start: Sequence[Sequence[float]], genes: Sequence[Gene], population: int
) -> np.ndarray:
    """(population, n) values: those given, within the bounds, then uniform ones (by the logarithm for log genes)."""
    drawn = _from_unit(rng.random((population, len(genes))), genes)
    given = np.array(list(start)[:population], dtype=float).reshape(-1, len(genes))
    drawn[: len(given)] = given.clip([gene.low for gene in genes], [gene.high for gene in genes])
    return _whole(drawn, genes)


def next_generation(
    rng: np.random.Generator,
    values: np.ndarray,
    fitness: np.ndarray,
    genes: Sequence[Gene],
    g: int,
    generations: int,
    literal: bool,
) -> np.ndarray:
    """(m, n) values of the new individuals of generation g + 1.

    The pool is the elite and the winners of tournaments. A child has one or two parents from it: with two, the genes up to a
    random place are the first's. Then genes mutate.

    Args:
        values: (population, n) of generation g with those that live on in it, each within its bounds.
        fitness: (population,) of these; -inf after a failure.
        genes: n of them.
        literal: YOLOv5's way: a mutation is at most 0.1 whatever the gene's unit, whole numbers are not rounded, and the
            best individuals do not live on, so m is the population. Else it is at most a fifth of the gene's range, on average
            one gene of a child mutates even late, and a copy of an individual mutates in any case.
    """
    population, n = values.shape
    plan, order = schedule(g, generations), ranked(fitness)
    place = np.empty(population, int)
    place[order] = np.arange(population)
    elite = min(plan.elites, population) if literal else survivors(g, generations, population, False)
    pool = list(order[:elite])
    while len(pool) < population:
        rivals = rng.choice(population, min(plan.tournament, population), replace=False)
        pool.append(rivals[place[rivals].argmin()])
    children = np.empty((size(g + 1, generations, population, literal), n))
    for child in children:
        first, second = rng.choice(population, 2, replace=False)
        child[:] = values[pool[first]]
        if rng.random() < plan.crossover and n > 1:
            cut = rng.integers(1, n)
            child[cut:] = values[pool[second]][cut:]
    change, chance = rng.uniform(-1, 1, children.shape), rng.random(children.shape)
    if literal:
        moved = (children + LITERAL_REACH * change).clip([gene.low for gene in genes], [gene.high for gene in genes])
        return np.where(chance < plan.mutation, moved, children)
    moved = _from_unit((_to_unit(children, genes) + REACH * change).clip(0, 1), genes)
    mutated = chance < max(plan.mutation, 1 / n)
    same = (children[:, None] == values).all(axis=2).any(axis=1)
    mutated[same, rng.integers(n, size=same.sum())] = True
    return _whole(np.where(mutated, moved, children), genes)


def _to_unit(values: np.ndarray, genes: Sequence[Gene]) -> np.ndarray:
    """(m, n) values -> the same within 0..1 of their ranges."""
    columns = []
    for column, gene in zip(values.T, genes, strict=True):
        low, high = (math.log(gene.low), math.log(gene.high)) if gene.log else (gene.low, gene.high)
        columns.append(((np.log(column) if gene.log else column) - low) / (high - low))
    return np.stack(columns, axis=1)


def _from_unit(units: np.ndarray, genes: Sequence[Gene]) -> np.ndarray:
    columns = []
    for column, gene in zip(units.T, genes, strict=True):
        low, high = (math.log(gene.low), math.log(gene.high)) if gene.log else (gene.low, gene.high)
        value = low + column * (high - low)
        columns.append((np.exp(value) if gene.log else value).clip(gene.low, gene.high))
    return np.stack(columns, axis=1)


def _whole(values: np.ndarray, genes: Sequence[Gene]) -> np.ndarray:
    return np.where([gene.whole for gene in genes], np.round(values), values)
