"""Which genes decide whether an individual is among the best."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from detector.commands.evolve.individual import Individual, done
from detector.commands.evolve.space import Gene

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
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
    content: dict[str, Any] = {"method": METHOD, "individuals": len(used), "importances": {}, "chance": None, "note": ""}
    if len({tuple(sorted(i.values.items())) for i in used}) < 2:
        content["note"] = "at least two different individuals must be done"
    elif len({i.fitness for i in used}) < 2:
        content["note"] = "all individuals that are done have the same fitness"
    elif not searched:
        content["note"] = "no gene has room between its bounds"
    if content["note"]:
        return content
    found, by_chance = _ped_anova(searched, used)
    total = sum(found.values())
    if total <= 0:
        return {**content, "note": "the better half is spread like all"}
    content["importances"] = {name: round(share / total, 5) for name, share in found.items()}
    content["chance"] = round(float(np.quantile(by_chance, 0.9)) / total, 5)
    return content


def _ped_anova(genes: Sequence[Gene], used: Sequence[Individual]) -> tuple[dict[str, float], list[float]]:
    """Divergence of the better half from all, by gene, the largest first; and that of all genes in each shuffle."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    from detector.commands.evolve.sampler import distribution

    study = optuna.create_study(direction="maximize")
    for i in used:
        there = {g.name: g for g in genes if g.name in i.values}
        # A start value may lie outside the bounds.
        params = {name: min(max(i.values[name], g.low), g.high) for name, g in there.items()}
        params |= {name: round(value) for name, value in params.items() if there[name].whole}
        spaces: dict[str, BaseDistribution] = {name: distribution(g) for name, g in there.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=i.fitness))
    find = partial(get_param_importances, study, evaluator=PedAnovaImportanceEvaluator(target_quantile=BETTER), normalize=False)
    rng = np.random.default_rng(0)
    by_chance: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials, that targets are minimised, and that `normalize` is experimental
        found = find()
        for _ in range(SHUFFLES):
            shuffled = dict(enumerate(-rng.permutation([float(i.fitness or 0) for i in used])))
            by_chance += find(target=partial(_look_up, shuffled)).values()
    return found, by_chance


def _look_up(values: Mapping[int, float], trial: "FrozenTrial") -> float:
    return values[trial.number]
