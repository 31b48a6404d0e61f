"""Which genes decide whether an individual is among the best."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from detector.commands.evolve.individual import Individual
from detector.commands.evolve.ranking import done
from detector.commands.evolve.space import Gene

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

METHOD = "PED-ANOVA"
BETTER = 0.5  # share of the individuals whose values are compared with those of all
SHUFFLES = 10


def importances(genes: Sequence[Gene], individuals: Sequence[Individual]) -> dict[str, Any]:
    """How differently the values of each gene are spread among the better half of the individuals and among all.

    Optuna's PED-ANOVA (Watanabe, Bansal and Hutter 2023, arXiv 2304.10255), measured where the sampler went, not over the
    whole space. Optuna compares the best tenth; half is surer to find the gene that matters among some tens of individuals.
    A small sample differs by chance as well, so the same is done with the fitness shuffled. It is no proof of a cause: in a
    population that converges, a gene that merely came along with the better individuals counts too. Only individuals whose
    state is done are used.

    Returns:
        What importances.json holds: method, individuals (so many were used), importances (by gene, the most important first;
        they add up to 1), chance (what a gene that decides nothing stays below, nine times in ten), note (why there are no
        importances, or empty).
    """
    used = done(individuals)
    searched = [g for g in genes if g.high > g.low]
    told: dict[str, Any] = {"method": METHOD, "individuals": len(used), "importances": {}, "chance": None, "note": ""}
    if len({tuple(sorted(i.values.items())) for i in used}) < 2:
        told["note"] = "at least two different individuals must be done"
    elif len({i.fitness for i in used}) < 2:
        told["note"] = "all individuals that are done have the same fitness"
    elif not searched:
        told["note"] = "no gene has room between its bounds"
    if told["note"]:
        return told
    found, by_chance = _ped_anova(searched, used)
    total = sum(found.values())
    if total <= 0:
        return {**told, "note": "the better half is spread like all"}
    order = sorted(found, key=lambda name: -found[name])
    told["importances"] = {name: round(found[name] / total, 5) for name in order}
    told["chance"] = round(float(np.quantile(by_chance, 0.9)) / total, 5)
    return told


def _ped_anova(genes: Sequence[Gene], used: Sequence[Individual]) -> tuple[dict[str, float], list[float]]:
    """Divergence of the better half from all, by gene; and that of all genes in each shuffle."""
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
    from optuna.importance import PedAnovaImportanceEvaluator

    spaces: dict[str, BaseDistribution] = {
        g.name: IntDistribution(round(g.low), round(g.high), log=g.log)
        if g.whole
        else FloatDistribution(g.low, g.high, log=g.log)
        for g in genes
    }
    trials = []
    for i in used:
        # A start value may lie outside the bounds.
        values = {g.name: min(max(i.values[g.name], g.low), g.high) for g in genes if g.name in i.values}
        params = {g.name: round(values[g.name]) if g.whole else values[g.name] for g in genes if g.name in values}
        distributions = {name: spaces[name] for name in params}
        trials.append(optuna.trial.create_trial(params=params, distributions=distributions, value=i.fitness))
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a new study is announced
    try:
        study = optuna.create_study(direction="maximize")
    finally:
        optuna.logging.set_verbosity(before)
    study.add_trials(trials)
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BETTER)
    rng = np.random.default_rng(0)
    by_chance: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials, and that targets are minimised
        found = evaluator.evaluate(study)
        for _ in range(SHUFFLES):
            shuffled = dict(enumerate(-rng.permutation([float(i.fitness or 0) for i in used])))
            by_chance += evaluator.evaluate(study, target=partial(_look_up, shuffled)).values()
    return found, by_chance


def _look_up(values: Mapping[int, float], trial: "FrozenTrial") -> float:
    return values[trial.number]
