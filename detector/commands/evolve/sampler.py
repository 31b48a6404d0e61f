"""Who chooses the next values: YOLOv5's genetic algorithm as an Optuna sampler, or one of Optuna's own."""

import importlib.util
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from detector.commands.evolve.genetics import first_generation, next_generation, ranked
from detector.commands.evolve.plan import Plan
from detector.commands.evolve.space import Gene
from detector.system.errors import InputError

optuna.logging.set_verbosity(optuna.logging.ERROR)  # it announces each new study


def slot_of(trial: FrozenTrial) -> int:
    """Number of the individual that a trial stands for; trials that take up an interrupted one have its number."""
    return trial.user_attrs.get("slot", trial.number)


def is_interrupted(trial: FrozenTrial) -> bool:
    """Whether a trial ended with its worker and not by itself."""
    return trial.state == TrialState.FAIL and "reason" not in trial.user_attrs


def official(trials: list[FrozenTrial]) -> dict[int, FrozenTrial]:
    """Number of an individual -> its trial: the first that was not interrupted, or the last of those that were.

    A trial that is named here and not interrupted stays the one, whatever trials are added later. So no lock is needed to
    agree on it.
    """
    found: dict[int, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        slot = slot_of(trial)
        if slot not in found or is_interrupted(found[slot]):
            found[slot] = trial
    return found


def fitness_of(trial: FrozenTrial) -> float:
    """-inf after a failure."""
    return float("-inf") if trial.value is None else trial.value


class GeneticSampler(optuna.samplers.BaseSampler):
    """YOLOv5's genetic algorithm. Individual i of generation g is a function of the seed, g, i and the results of earlier
    generations alone, whoever asks and in whatever order trials end. All earlier generations must have ended.

    In `Study.optimize` of a single process, too, trial numbers are those of individuals.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._new: dict[int, np.ndarray] = {}  # generation -> its new individuals

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(distributions(self.plan))

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        generation, index = self.plan.place(slot_of(trial))
        if generation not in self._new:
            self._new[generation] = self.generation(official(study.get_trials(deepcopy=False)), generation)
        row = self._new[generation][index]
        return {gene.name: float(value) for gene, value in zip(self.plan.genes, row, strict=True)}

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        raise ValueError(f"{name} is no gene of this study")

    def generation(self, trials: dict[int, FrozenTrial], generation: int) -> np.ndarray:
        """(m, n) values of the new individuals of a generation, from the results of those before."""
        plan = self.plan
        given = [[start[gene.name] for gene in plan.genes] for start in plan.start]
        new = first_generation(_rng(plan.seed, 0), given, plan.genes, plan.population)
        values, fitness, first = np.empty((0, len(plan.genes))), np.empty(0), 0
        for g in range(generation):
            elite = ranked(fitness)[: plan.population - len(new)]
            found = np.array([fitness_of(trials[first + i]) for i in range(len(new))])
            values, fitness = np.concatenate((values[elite], new)), np.concatenate((fitness[elite], found))
            first += len(new)
            new = next_generation(_rng(plan.seed, g + 1), values, fitness, plan.genes, g, plan.generations, plan.literal)
        return new


def sampler_for(plan: Plan, slot: int) -> optuna.samplers.BaseSampler:
    """The sampler that chooses an individual.

    Optuna's own have a generator for each individual, so that processes do not draw the same; but what they choose depends on
    which trials have ended by then, so with several workers it is another thing each time.

    Raises:
        InputError: CMA-ES without its library.
    """
    seed = int(np.random.SeedSequence([plan.seed, slot]).generate_state(1)[0]) % 2**31
    if plan.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(10, len(plan.start)))
    if plan.sampler == "cmaes":
        if importlib.util.find_spec("cmaes") is None:
            raise InputError("evolve.sampler cmaes needs the library cmaes: pip install 'boltbox[cmaes]'")
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if plan.sampler == "nsgaii":
        return optuna.samplers.NSGAIISampler(population_size=plan.population, seed=seed)
    return GeneticSampler(plan)


def distributions(plan: Plan) -> dict[str, IntDistribution | FloatDistribution]:
    """Of the genes. The genetic algorithm rounds whole numbers itself, or, like YOLOv5, not at all."""
    return {gene.name: distribution(gene._replace(whole=gene.whole and plan.sampler != "yolov5")) for gene in plan.genes}


def distribution(gene: Gene) -> IntDistribution | FloatDistribution:
    """Uniform between its bounds, by its logarithm if it says so."""
    if gene.whole:
        return IntDistribution(round(gene.low), round(gene.high), log=gene.log)
    return FloatDistribution(gene.low, gene.high, log=gene.log)


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(list(key))
