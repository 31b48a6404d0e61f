"""A study: its options, and its individuals in Optuna's storage.

An individual, one set of hyper-parameters, is an Optuna trial. It is RUNNING until its result is
known. After a kill the next command in the folder continues it, or another machine takes it over.
"""

import contextlib
import json
import math
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
from jsonargparse.typing import PositiveFloat, PositiveInt, SecretStr
from optuna.trial import FrozenTrial, Trial, TrialState

from boltbox.detector.commands.evolve.genetic import fitness, next_values
from boltbox.detector.commands.evolve.space import (
    EVOLVED,
    YOLOV5_GENES,
    Gene,
    read_space,
    start_values,
)
from boltbox.detector.commands.evolve.storage import (
    ERRORS,
    FILE,
    address_of,
    exclusive,
    open_study,
    reason,
    shown,
)
from boltbox.detector.system.atomic_file import make_folder, write_atomically
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError

MEMBER = "study.id"  # in a folder whose study is in a database: ids of the study and the folder
BEAT = 30.0  # seconds between two signs of life
# Seconds without one until another machine takes an individual over. A command that does not reach
# the storage has stopped its trainings before: see PATIENCE and STOP_TIMEOUT in trainings.py.
GRACE = 600.0
# Beginnings of the names of options that may differ from one command for a study to the next.
OF_A_COMMAND = (
    "run",
    "config",
    "trainer.logger",
    "trainer.default_root_dir",
    "trainer.enable_progress_bar",
    "evolve.space",
    "evolve.workers",
    "evolve.hours",
    "evolve.storage",
    "evolve.study",
)


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Generations; generations x population individuals are trained. The 300 x 50 of
            YOLOv5: --config configs/evolve_yolov5.yaml.
        population: Individuals per generation.
        sampler: Source of values: YOLOv5's genetic algorithm, or Optuna's TPE.
        space: File of the values to search for, with bounds; default: YOLOv5's 13 augmentation
            values.
        workers: Simultaneous training runs; default: one per GPU, or one.
        hours: No new training after this many hours; null: no limit. The same command continues.
        storage: Address of a database, in which several machines work on one study, like
            postgresql://USER@HOST/DATABASE; default: a file in the folder.
        study: Name of the study in that database.
    """

    generations: PositiveInt = 10
    population: PositiveInt = 12
    sampler: Literal["yolov5", "tpe"] = "yolov5"
    space: str | None = None
    workers: PositiveInt | None = None
    hours: PositiveFloat | None = 12.0
    storage: SecretStr | None = None
    study: str = "evolve"

    @property
    def size(self) -> int:
        """Individuals in all."""
        return self.population * self.generations


class Plan(NamedTuple):
    """What a study searches for, and how; it stays the same from its first trial to its last.

    Attributes:
        genes: numbers to search for.
        evolve: the options.
        start: values of the first individuals; the sampler chooses those of the others.
        seed: of everything random.
        settings: value by option, for all options that must stay the same.
    """

    genes: tuple[Gene, ...]
    evolve: Evolution
    start: tuple[Mapping[str, float], ...] = ()
    seed: int = 0
    settings: Mapping[str, Any] = {}


def planned(evolve: Evolution, configuration: Mapping[str, Any]) -> Plan:
    """Plan a study.

    Args:
        evolve: the options of the search.
        configuration: the complete configuration of `evolve`, in groups.

    Raises:
        InputError: the space or the population makes no sense.
    """
    if evolve.sampler == "yolov5" and evolve.population < 2:
        raise InputError("evolve.population is 1; a child has two parents, so give 2 or more")
    options = flatten(configuration)
    if not options["trainer.max_epochs"]:
        raise InputError("trainer.max_epochs: evolve needs a positive number of epochs")
    genes = [YOLOV5_GENES[name] for name in EVOLVED]
    if evolve.space:
        genes = read_space(Path(evolve.space), options)
    start = tuple(start_values(genes, options))
    settings: dict[str, Any] = {f"the gene {gene.name}": gene for gene in genes}
    for option, value in options.items():
        if not option.startswith(OF_A_COMMAND):
            settings[option] = value
    settings = json.loads(json.dumps(settings))
    return Plan(tuple(genes), evolve, start, options["seed_everything"], settings)


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
    """A study, which is created if it does not exist. Only one process at a time may use its
    folder; if a database stores it, other machines take part from folders of their own.

    Args:
        folder: of this machine.
        plan: what it searches for, and how.

    Attributes:
        optuna: Optuna's study.

    Raises:
        InputError: the storage cannot be used or holds no study, the study was begun with other
            options, or the folder is that of another one.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.url = address_of(folder, plan.evolve.storage)
        mark_of_other_kind = FILE if plan.evolve.storage else MEMBER
        self._refuse_if((folder / mark_of_other_kind).exists())
        name = plan.evolve.study if plan.evolve.storage else "evolve"
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        make_folder(folder)
        self.storage, self.optuna = open_study(self.url, name)
        self._heard = -math.inf  # from the storage, in seconds
        self._signs: dict[int, tuple[Any, float]] = {}  # of other machines, and when they came
        with self.storage_errors():
            self._study_id = self.storage.get_study_id_from_name(name)
            with exclusive(self.storage):
                self._join()
            self.beat([])  # queues what a command that was killed has trained here

    def _refuse_if(self, is_another: bool) -> None:
        if is_another:
            raise InputError(
                f"{self.folder} is that of a study in another evolve.storage; give the same, or"
                " another --run"
            )

    def _join(self) -> None:
        """Begin the study, or take part in it."""
        settings = dict(self.plan.settings)
        known = self.optuna.user_attrs
        begun = known.get("settings", settings)
        for option, (was, now) in differences([begun, settings]).items():
            raise InputError(
                f"{self.folder} was begun with other options: {option} is {was} in it and {now}"
                " here; give the same, or another --run"
            )
        self._id = known.get("id", uuid.uuid4().hex)
        self._worker = ""
        self.optuna.set_user_attr("id", self._id)
        self.optuna.set_user_attr("settings", settings)
        if self.plan.evolve.storage:
            member = _member(self.folder) or [self._id, uuid.uuid4().hex]
            self._refuse_if(member[0] != self._id)
            write_atomically(self.folder / MEMBER, " ".join(member))
            self._worker = member[1]
        for values in self.plan.start:
            self.optuna.enqueue_trial(dict(values), skip_if_exists=True)

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The individuals in any of these states, by number; without states all.

        Args:
            states: of Optuna.
        """
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    def ended(self) -> list[FrozenTrial]:
        """The individuals that have a fitness or failed, by number."""
        return self.trials(TrialState.COMPLETE, TrialState.FAIL)

    def best(self) -> FrozenTrial | None:
        """The fittest individual, among equals the earliest; None while none has a fitness."""
        return max(self.trials(TrialState.COMPLETE), key=fitness, default=None)

    def ask(self) -> Trial | None:
        """The next individual to train: an interrupted one, one of the start, or a new one; None if
        all have begun."""
        genes = self.plan.genes
        evolve = self.plan.evolve
        with exclusive(self.storage):
            ended = self.ended()
            if len(ended) + len(self.trials(TrialState.RUNNING)) >= evolve.size:
                return None
            number = len(self.trials())
            seed = self.plan.seed
            if evolve.sampler == "tpe":
                self.optuna.sampler = optuna.samplers.TPESampler(seed=1000 * seed + number)
            elif not self.trials(TrialState.WAITING):
                generations = evolve.generations
                values = next_values(genes, ended, number, evolve.population, generations, seed)
                self.optuna.enqueue_trial(values)
            trial = self.optuna.ask({gene.name: gene.distribution for gene in genes})
            trial.set_user_attr("worker", self._sign())
            trial.set_user_attr("generation", len(ended) // evolve.population)
            return trial

    def run(self, trial: Trial | FrozenTrial) -> Path:
        """The run folder of an individual: where it was trained before, if that is a folder of this
        study on this machine or a shared disk, else in the folder of this machine.

        Args:
            trial: of the individual.
        """
        own = self.folder / "trials" / f"{trial.number:04d}"
        before = Path(trial.user_attrs.get("run", own))
        is_here = before.is_dir() and self._id in _member(before.parent.parent)
        return before if is_here else own

    def tell(self, number: int, outcome: Outcome) -> FrozenTrial | None:
        """Record the result of an individual.

        Args:
            number: of the individual.
            outcome: of its training.

        Returns:
            The individual; None if another machine has taken it over.
        """
        with exclusive(self.storage):
            known = self.trials()[number]
            if self._owner(known) != self._worker or known.state == TrialState.WAITING:
                return None
            if known.state.is_finished():  # by this command, which did not hear it
                return known
            self._set(known, "metrics", dict(outcome.metrics))
            self._set(known, "reason", " ".join(outcome.reason.split()))
            state = TrialState.FAIL if outcome.fitness is None else TrialState.COMPLETE
            return self.optuna.tell(number, outcome.fitness, state)

    def beat(self, numbers: Collection[int]) -> set[int]:
        """Once in BEAT seconds, give a sign of life, and queue what nobody trains any longer.

        Args:
            numbers: of the individuals that are trained here.

        Returns:
            Those that no other machine has taken over, as far as the last look at the storage says.
        """
        now = time.monotonic()
        if now - self._heard < BEAT:
            return set(numbers)
        held = set()
        with exclusive(self.storage):
            for trial in self.trials(TrialState.RUNNING):
                if trial.number in numbers and self._owner(trial) == self._worker:
                    held.add(trial.number)
                    self._set(trial, "worker", self._sign())
                elif self._is_abandoned(trial):
                    self._requeue(trial)
        self._heard = now
        return held

    @contextlib.contextmanager
    def storage_errors(self, patience: float = 0.0) -> Iterator[None]:
        """A context which an error of the storage ends, without an exception for some time.

        Args:
            patience: seconds since the last `beat`; an error after more raises.

        Raises:
            InputError: the storage has failed for so long.
        """
        try:
            yield
        except ERRORS as e:
            if time.monotonic() - self._heard >= patience:
                raise InputError(
                    f"{shown(self.url)} fails: {reason(e)}. Repeat the command to continue"
                ) from None

    def _sign(self) -> tuple[str, float]:
        return self._worker, time.time()

    def _owner(self, trial: FrozenTrial) -> str:
        """Who trains it. No other one begins until the first has written that it does: `ask`."""
        return trial.user_attrs.get("worker", [self._worker])[0]

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        """Whether nobody trains a RUNNING individual. Clocks of machines are not compared."""
        now = time.monotonic()
        sign = trial.user_attrs.get("worker")
        last, since = self._signs.get(trial.number, (None, now))
        if sign != last:
            since = now
        self._signs[trial.number] = (sign, since)
        return self._owner(trial) == self._worker or now - since > GRACE

    def _set(self, trial: FrozenTrial, name: str, value: Any) -> None:
        self.storage.set_trial_user_attr(self._trial_id(trial), name, value)

    def _requeue(self, trial: FrozenTrial) -> None:
        self.storage.set_trial_state_values(self._trial_id(trial), TrialState.WAITING)

    def _trial_id(self, trial: FrozenTrial) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)


def _member(folder: Path) -> list[str]:
    """The content of MEMBER: the ids of a study and of the worker in this folder."""
    with contextlib.suppress(OSError, ValueError):
        return (folder / MEMBER).read_text(encoding="utf-8").split()
    return []
