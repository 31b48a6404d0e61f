"""Who chooses the next values: YOLOv5's genetic algorithm as an Optuna sampler, or one of Optuna's
own."""

from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from boltbox.detector.commands.evolve.genetics import child, random_values, schedule
from boltbox.detector.commands.evolve.individual import ended, fitness, individuals, number
from boltbox.detector.commands.evolve.plan import Plan


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
