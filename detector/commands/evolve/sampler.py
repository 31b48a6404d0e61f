"""Who chooses the next values: YOLOv5's genetic algorithm as an Optuna sampler, or one of Optuna's
own. Before that, what an individual is among the trials of Optuna's study."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.space import Gene

REACH = 0.2  # a mutation moves a gene by at most this share of its range


def number(trial: FrozenTrial) -> int:
    """Of the individual: that of the trial which was the first to train it."""
    return int(trial.system_attrs.get("failed_trial", trial.number))


def last_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The last trial of each individual."""
    last = {number(t): t for t in study.get_trials(deepcopy=False)}
    return list(last.values())


def is_interrupted(trial: FrozenTrial) -> bool:
    """Whether its command was stopped or killed: a training that failed has a reason."""
    return trial.state == TrialState.FAIL and not trial.user_attrs.get("reason")


def interrupted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have to be trained again, and are not in the queue yet."""
    return [trial for trial in last_trials(study) if is_interrupted(trial)]


def individuals(study: optuna.Study) -> list[FrozenTrial]:
    """The last trial of each that has ended or is being trained now, by number."""
    # a trial has no generation before it has its values
    begun = [t for t in last_trials(study) if "generation" in t.user_attrs]
    return sorted(
        (t for t in begun if t.state != TrialState.WAITING and not is_interrupted(t)), key=number
    )


def ended(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that have a fitness or failed."""
    return [t for t in trials if t.state.is_finished()]


def fitness(trial: FrozenTrial) -> float:
    """-inf after a failure."""
    return float("-inf") if trial.value is None else trial.value


def best(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The fittest of those that have a fitness, among equals the earliest."""
    return max((t for t in trials if t.value is not None), key=fitness, default=None)


def seconds(trial: FrozenTrial) -> float:
    """That it took since it was begun, or continued, last."""
    return trial.duration.total_seconds() if trial.duration else 0.0


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
    """(n,) values of a child of generation g.

    The pool of parents is the elite and the winners of tournaments. A child has one or two parents:
    with two, the genes up to a random place are the first's. Then genes mutate, by at most a fifth
    of their range: on average one even late, and of a copy one in any case.

    Args:
        values: (m, n) of the population, each within its bounds.
        fitness: (m,) of these; -inf after a failure.
        genes: n of them.
    """
    count, n = values.shape
    plan, values = schedule(g, generations), values[np.argsort(-fitness, kind="stable")]
    pool = list(range(min(plan.elites, max(count // 4, 1))))
    while len(pool) < count:
        rivals = rng.choice(count, min(plan.tournament, count), replace=False)
        pool.append(rivals.min())
    first, second = rng.choice(pool, 2, replace=False)
    new = values[first].copy()
    if n > 1 and rng.random() < plan.crossover:
        cut = rng.integers(1, n)
        new[cut:] = values[second, cut:]
    change, chance = rng.uniform(-1, 1, new.shape), rng.random(new.shape)
    mutated = chance < max(plan.mutation, 1 / n)
    mutated[rng.integers(n)] |= (values == new).all(axis=1).any()
    for k, gene in enumerate(genes):
        if mutated[k]:
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
            row = np.array([gene.from_unit(rng.random()) for gene in genes])
        else:
            earlier, parents = found[: -evolve.population], found[-evolve.population :]
            elites = min(schedule(g - 1, evolve.generations).elites, evolve.population // 4)
            parents += sorted(earlier, key=fitness, reverse=True)[:elites]
            values = np.array([[t.params[gene.name] for gene in genes] for t in parents], float)
            scores = np.array([fitness(t) for t in parents])
            row = child(rng, values, scores, genes, g - 1, evolve.generations)
        return {gene.name: gene.used(x) for gene, x in zip(genes, row, strict=True)}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{name} is no gene of this study")


def sampler_for(plan: Plan, trials: int) -> optuna.samplers.BaseSampler:
    """The sampler that chooses an individual when a study has this many trials."""
    if plan.evolve.sampler == "tpe":
        seed = int(np.random.default_rng([plan.seed, trials]).integers(2**31))
        return optuna.samplers.TPESampler(seed=seed)
    return GeneticSampler(plan)


def distributions(plan: Plan) -> dict[str, IntDistribution | FloatDistribution]:
    """Of the genes, by name."""
    return {
        gene.name: IntDistribution(round(gene.low), round(gene.high), log=gene.log)
        if gene.whole
        else FloatDistribution(gene.low, gene.high, log=gene.log)
        for gene in plan.genes
    }
