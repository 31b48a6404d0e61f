"""A study in Optuna's storage, an SQLite file in its folder.

An individual, one set of hyper-parameters, is a trial of Optuna's. One whose command was killed has
no heartbeat any more: Optuna lets it fail, without a reason. The next command that asks for an
individual puts it in the queue again, as a further trial with the same values, which keeps the
number of the first.
"""

import contextlib
import copy
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import URL

from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.sampler import (
    distributions,
    ended,
    individuals,
    interrupted,
    number,
    sampler_for,
)
from boltbox.detector.system.atomic_file import make_folder
from boltbox.detector.system.configuration import differences
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.operating_system import alone

HEARTBEAT_INTERVAL = 10  # seconds
GRACE_PERIOD = 60  # seconds without a heartbeat after which a command counts as dead
FILE = "study.db"


class Outcome(NamedTuple):
    """What came of an individual. fitness: None if it failed · metrics: of the best epoch · reason:
    why it failed."""

    fitness: float | None
    metrics: Mapping[str, float] = {}
    reason: str = ""


class Study:
    """A study, which is created if it does not exist.

    Args:
        folder: of the study.

    Attributes:
        optuna: the study as Optuna has it.

    Raises:
        InputError: its file holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Heartbeat of storage")  # see `heartbeat`
        make_folder(folder)
        self._seen = set[int]()
        url = URL.create("sqlite", database=str((folder / FILE).resolve()))
        try:
            self._storage = RDBStorage(
                url.render_as_string(),
                engine_kwargs={"connect_args": {"timeout": 60}},  # seconds, for a lock
                heartbeat_interval=HEARTBEAT_INTERVAL,
                grace_period=GRACE_PERIOD,
            )
            self.optuna = optuna.create_study(
                storage=self._storage,
                study_name="evolve",
                direction="maximize",
                load_if_exists=True,
            )
        except Exception as e:
            problem = in_one_line(e)[:200]
            raise InputError(f"{folder / FILE} cannot be read as a study: {problem}") from None

    def begin(self, settings: dict[str, Any]) -> None:
        """Begin or continue it.

        Args:
            settings: option -> value, of what must stay the same.

        Raises:
            InputError: it was begun with other options; it names one.
        """
        begun = self.optuna.user_attrs.get("settings", settings)
        for option, (was, now) in differences([begun, settings]).items():
            raise InputError(
                f"{self.folder} was begun with other options: {option} is {was} in it and {now}"
                " here; give the same, or another --run"
            )
        self.optuna.set_user_attr("settings", settings)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """For one command at a time."""
        return alone(self.folder)

    def individuals(self) -> list[FrozenTrial]:
        """Those that have ended or are being trained now."""
        return individuals(self.optuna)

    def ask(self, plan: Plan) -> Trial:
        """The next individual to train: one that was interrupted, or one with new values."""
        if interrupted(self.optuna):
            with self.alone():  # another command may just do the same
                for trial in interrupted(self.optuna):
                    RetryHeartbeatStaleTrialCallback()(self.optuna, copy.deepcopy(trial))
        trials = self.optuna.get_trials(deepcopy=False)
        given = [t.system_attrs.get("fixed_params") for t in trials]
        new = [dict(values) for values in plan.start if values not in given]
        if new and all(t.state != TrialState.WAITING for t in trials):
            self.optuna.enqueue_trial(new[0])
        self.optuna.sampler = sampler_for(plan, len(trials))
        trial = self.optuna.ask(dict(distributions(plan)))
        self.heartbeat([trial])
        if "generation" not in trial.user_attrs:
            generation = len(ended(self.individuals())) // plan.evolve.population
            trial.set_user_attr("generation", generation)
        return trial

    def heartbeat(self, trials: Iterable[Trial]) -> None:
        """These are being trained; to be called every HEARTBEAT_INTERVAL. Those of dead commands
        are interrupted."""
        for trial in trials:
            self._storage.record_heartbeat(trial._trial_id)
        fail_stale_trials(self.optuna)
        # without a first heartbeat a trial is never stale, and its command may have been killed
        running = self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for unseen in {trial._trial_id for trial in running} - self._seen:
            self._storage.record_heartbeat(unseen)
            self._seen.add(unseen)

    def frozen(self, trial: Trial) -> FrozenTrial:
        """What the storage knows of it."""
        return self.optuna.get_trials(deepcopy=False)[trial.number]

    def run(self, trial: FrozenTrial) -> Path:
        """The folder of its training."""
        return self.folder / "trials" / f"{number(trial):04d}"

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        """Record how it ended."""
        trial.set_user_attr("metrics", dict(outcome.metrics))
        trial.set_user_attr("reason", " ".join(outcome.reason.split()))
        state = TrialState.FAIL if outcome.fitness is None else TrialState.COMPLETE
        self.optuna.tell(trial, outcome.fitness, state, skip_if_finished=True)

    def release(self, trial: Trial) -> None:
        """It is interrupted."""
        self.optuna.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
