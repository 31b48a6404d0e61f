"""A study in Optuna's storage, an SQLite file in its folder.

An individual, one set of hyper-parameters, is an Optuna trial. It is RUNNING until its result is
known; so after a kill the next command continues the training runs of all RUNNING trials.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import URL

from boltbox.detector.commands.evolve.genetic import fitness, next_values
from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.system.atomic_file import make_folder
from boltbox.detector.system.configuration import differences
from boltbox.detector.system.errors import InputError, in_one_line

FILE = "study.db"


class Outcome(NamedTuple):
    """The result of an individual's training.

    Attributes:
        fitness: None if the training failed.
        metrics: of the best epoch.
        reason: why the training failed.
    """

    fitness: float | None
    metrics: Mapping[str, float] = {}
    reason: str = ""


class Study:
    """A study, which is created if it does not exist. Only one process at a time may use it.

    Args:
        folder: of the study.
        plan: what it searches for, and how.
        settings: value by option, for all options that must stay the same.

    Attributes:
        optuna: Optuna's study.

    Raises:
        InputError: its file is no study, or the study was begun with other options.
    """

    def __init__(self, folder: Path, plan: Plan, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.plan = plan
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        make_folder(folder)
        url = URL.create("sqlite", database=str((folder / FILE).resolve()))
        try:
            self.optuna = optuna.create_study(
                storage=url.render_as_string(),
                study_name="evolve",
                direction="maximize",
                load_if_exists=True,
            )
        except Exception as e:
            problem = in_one_line(e)[:200]
            raise InputError(f"{folder / FILE} cannot be read as a study: {problem}") from None
        begun = self.optuna.user_attrs.get("settings", settings)
        for option, (was, now) in differences([begun, settings]).items():
            raise InputError(
                f"{folder} was begun with other options: {option} is {was} in it and {now} here;"
                " give the same, or another --run"
            )
        self.optuna.set_user_attr("settings", settings)
        for values in plan.start:
            self.optuna.enqueue_trial(dict(values), skip_if_exists=True)
        self._interrupted = self._trials(TrialState.RUNNING)

    def ended(self) -> list[FrozenTrial]:
        """The individuals that have a fitness or failed, by number."""
        return self._trials(TrialState.COMPLETE, TrialState.FAIL)

    def trial(self, number: int) -> FrozenTrial:
        """One individual.

        Args:
            number: of the individual.
        """
        return self._trials()[number]

    def best(self) -> FrozenTrial | None:
        """The fittest individual, among equals the earliest; None while none has a fitness."""
        return max(self._trials(TrialState.COMPLETE), key=fitness, default=None)

    def has_next(self) -> bool:
        """Whether an individual is left to begin or to continue."""
        begun = len(self.ended()) + len(self._trials(TrialState.RUNNING))
        return len(self._interrupted) > 0 or begun < self.plan.evolve.size

    def ask(self) -> Trial:
        """The next individual to train: an interrupted one, or one with new values."""
        evolve = self.plan.evolve
        ended = self.ended()
        if self._interrupted:
            trial = Trial(self.optuna, self._interrupted.pop(0)._trial_id)
        else:
            number = len(self._trials())
            if evolve.sampler == "tpe":
                seed = int(np.random.default_rng([self.plan.seed, number]).integers(2**31))
                self.optuna.sampler = optuna.samplers.TPESampler(seed=seed)
            elif not self._trials(TrialState.WAITING):
                values = next_values(
                    self.plan.genes,
                    ended,
                    number,
                    evolve.population,
                    evolve.generations,
                    self.plan.seed,
                )
                self.optuna.enqueue_trial(values)
            trial = self.optuna.ask()
        for gene in self.plan.genes:
            if gene.is_integer:
                trial.suggest_int(gene.name, round(gene.low), round(gene.high), log=gene.log)
            else:
                trial.suggest_float(gene.name, gene.low, gene.high, log=gene.log)
        trial.set_user_attr("generation", len(ended) // evolve.population)
        return trial

    def run(self, number: int) -> Path:
        """The run folder of an individual.

        Args:
            number: of the individual.
        """
        return self.folder / "trials" / f"{number:04d}"

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        """Record the result of an individual.

        Args:
            trial: of the individual.
            outcome: of its training.
        """
        trial.set_user_attr("metrics", dict(outcome.metrics))
        trial.set_user_attr("reason", " ".join(outcome.reason.split()))
        state = TrialState.FAIL if outcome.fitness is None else TrialState.COMPLETE
        self.optuna.tell(trial, outcome.fitness, state)

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False, states=states or None)
