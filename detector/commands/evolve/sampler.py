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
        plan, found = self.plan, ended(individuals(study))
        rng = np.random.default_rng([plan.seed, number(trial)])
        g = min(len(found) // plan.population, plan.generations)
        if g == 0:
            row = random_values(rng, plan.genes)
        else:
            earlier, parents = found[: -plan.population], found[-plan.population :]
            if not plan.literal:
                elites = schedule(g - 1, plan.generations).elites
                parents += sorted(earlier, key=fitness, reverse=True)[
                    : min(elites, plan.population // 4)
                ]
            values = np.array(
                [[t.params[gene.name] for gene in plan.genes] for t in parents], float
            )
            scores = np.array([fitness(t) for t in parents])
            row = child(rng, values, scores, plan.genes, g - 1, plan.generations, plan.literal)
        return {
            gene.name: float(x) if plan.literal else gene.used(x)
            for gene, x in zip(plan.genes, row, strict=True)
        }

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{name} is no gene of this study")


def sampler_for(plan: Plan, trials: int) -> optuna.samplers.BaseSampler:
    """The sampler that chooses an individual when a study has so many trials."""
    if plan.sampler == "tpe":
        seed = int(np.random.default_rng([plan.seed, trials]).integers(2**31))
        return optuna.samplers.TPESampler(seed=seed)
    return GeneticSampler(plan)


def distributions(plan: Plan) -> dict[str, IntDistribution | FloatDistribution]:
    """Of the genes, by name. YOLOv5 rounds whole numbers only where they are used."""
    return {
        gene.name: IntDistribution(round(gene.low), round(gene.high), log=gene.log)
        if gene.whole and not plan.literal
        else FloatDistribution(gene.low, gene.high, log=gene.log)
        for gene in plan.genes
    }
