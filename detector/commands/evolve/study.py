"""A study that any number of processes on any number of machines work on.

Every individual has a number, its slot, and a trial of Optuna's; one that was interrupted gets a further trial under the same
number. Whoever looks for work adds the trial of the next open slot in state WAITING, and takes it by setting it RUNNING, which
a storage lets only one process do. Nothing is lost if a process is killed between any two of these steps.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from detector.commands.evolve.individual import Individual
from detector.commands.evolve.journal import open_storage
from detector.commands.evolve.plan import Plan
from detector.commands.evolve.process import Process
from detector.commands.evolve.sampler import distributions, fitness_of, is_cut, official, sampler_for
from detector.system.errors import InputError

BEAT = 20.0  # seconds between two signs of life of a worker
STALE = 90.0  # seconds without one after which it is taken for dead, if its process cannot be looked for
ATTEMPTS = 5  # at an individual whose worker died each time
State = Literal["running", "done", "pruned", "failed"]
STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Interrupted(Exception):
    """A training must be given up."""


class Stopped(Interrupted):
    """Because its worker was asked to stop: it is left so that it can go on later."""


class Lost(Interrupted):
    """Because another worker has taken it over, when this one had given no sign of life for long."""


@dataclass(frozen=True)
class Outcome:
    """What came of an individual. fitness: None after a failure · figures: of the best epoch · reason: of a failure, or why it
    was cut short · pruned: ended early, as hopeless."""

    fitness: float | None
    figures: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    pruned: bool = False


class Lease:
    """An individual that is this process's to train.

    Attributes:
        individual: with its values.
        folder: of the study.
    """

    def __init__(
        self, study: optuna.Study, trial: Trial, individual: Individual, folder: Path, stop: Callable[[], bool]
    ) -> None:
        self.individual, self.folder = individual, folder
        self._study, self._trial, self._stop = study, trial, stop
        self._beats, self._last, self._began = 0, time.monotonic(), time.monotonic()

    def tick(self) -> None:
        """To be called every second or so.

        Raises:
            Interrupted: the training must be given up.
        """
        if self._stop():
            raise Stopped
        if time.monotonic() - self._last > BEAT:
            self._beats, self._last = self._beats + 1, time.monotonic()
            with _lost_if_ended():
                self._trial.set_user_attr("beat", self._beats)

    def report(self, epochs: int, fitness: float) -> bool:
        """Tell the fitness after so many epochs, once each; whether it is so low that the training should end."""
        with _lost_if_ended():
            self._trial.report(fitness, epochs)
            return self._trial.should_prune()

    def end(self, outcome: Outcome) -> None:
        """Tell what came of it.

        Raises:
            Lost: another worker has taken it over.
        """
        seconds = time.monotonic() - self._began
        state = TrialState.PRUNED if outcome.pruned else TrialState.FAIL if outcome.fitness is None else TrialState.COMPLETE
        with _lost_if_ended():
            self._trial.set_user_attr("figures", outcome.figures)
            self._trial.set_user_attr("seconds", round(seconds, 1))
            if state != TrialState.COMPLETE:  # before the state: a failure without a reason counts as interrupted
                self._trial.set_user_attr("reason", outcome.reason or "no reason given")
            self._study.tell(self._trial, outcome.fitness if state == TrialState.COMPLETE else None, state)

    def release(self) -> None:
        """Leave it to whoever comes next."""
        with contextlib.suppress(Lost), _lost_if_ended():
            self._trial.set_user_attr("released", True)
            self._study.tell(self._trial, state=TrialState.FAIL)


class Study:
    """One process's view of a study.

    Args:
        folder: of the study, where the journal is if there is no `url`.
        url: an Optuna storage.
        begin: plan and settings for a study that does not exist yet; None: it must exist.
        stale: seconds without a sign of life after which a worker counts as dead.

    Attributes:
        plan: what it is about.
        settings: option -> value, of whoever began it.

    Raises:
        InputError: there is no study, or it cannot be read.
    """

    def __init__(
        self, folder: Path, url: str | None = None, begin: tuple[Plan, dict[str, Any]] | None = None, stale: float = STALE
    ) -> None:
        self.folder, self.me, self.stale = folder, Process.this(), stale
        self._storage = open_storage(folder, url)
        self._name = folder.resolve().name if url else "evolve"  # a database may hold several
        self._signs: dict[int, tuple[Any, float]] = {}  # trial -> its last sign of life, and when this process first saw it
        try:
            study = optuna.load_study(study_name=self._name, storage=self._storage)
        except KeyError:
            if begin is None:
                raise InputError(f"{folder} holds no study of evolve") from None
            study = optuna.create_study(study_name=self._name, storage=self._storage, direction="maximize", load_if_exists=True)
        if "plan" not in study.user_attrs:
            if begin is None:
                raise InputError(f"the study in {folder} was never begun; run its command again")
            study.set_user_attr("settings", begin[1])
            study.set_user_attr("plan", begin[0].content())  # last: with it the study exists
        try:
            self.plan, self.settings = Plan.of(study.user_attrs["plan"]), dict(study.user_attrs["settings"])
        except (TypeError, KeyError, ValueError) as e:
            raise InputError(f"the study in {folder} is another version's ({e}); give another --evolve.study") from None
        self._study, self._storage = study, study._storage  # of a database one that remembers trials which have ended

    def slots(self) -> dict[int, FrozenTrial]:
        """Number of an individual -> its trial."""
        return official(self._study.get_trials(deepcopy=False))

    def individuals(self) -> list[Individual]:
        """Those that were begun, by number; without those that were interrupted and wait for being taken up."""
        return [self._individual(slot, t) for slot, t in sorted(self.slots().items()) if t.state in STATES and not is_cut(t)]

    def finished(self, most: int | None = None) -> bool:
        """Whether the first `most` individuals, or all, have ended."""
        return not self._unfinished(self.slots(), most)

    def claim(self, stop: Callable[[], bool] = bool, most: int | None = None) -> Lease | None:
        """An individual to train, or None if there is none now: others are at work on the rest of the generation.

        Interrupted individuals come first, for they have the lowest numbers.

        Args:
            stop: asked in `Claim.tick`.
            most: only the first so many individuals.
        """
        while True:
            slots = self.slots()
            self._end_those_of_the_dead(slots)
            for slot in self._open(slots, most):
                trial = slots.get(slot)
                if trial is None or is_cut(trial):
                    self._add(slot, trial)
                    break
                if trial.state == TrialState.WAITING and self._take(trial):
                    return self._begin(slot, trial, stop)
            else:
                return None

    def _unfinished(self, slots: dict[int, FrozenTrial], most: int | None) -> list[int]:
        count = self.plan.trials if most is None else min(most, self.plan.trials)
        return [s for s in range(count) if s not in slots or not slots[s].state.is_finished() or is_cut(slots[s])]

    def _open(self, slots: dict[int, FrozenTrial], most: int | None) -> list[int]:
        """Those whose values can be known and which have not ended."""
        unfinished = self._unfinished(slots, most)
        if not unfinished or not self.plan.in_generations:
            return unfinished
        generation, index = self.plan.place(unfinished[0])
        end = unfinished[0] - index + self.plan.sizes[generation]
        return [s for s in unfinished if s < end]

    def _add(self, slot: int, before: FrozenTrial | None) -> None:
        """A waiting trial. Two processes may do so at once; the second one's never counts (see `official`)."""
        fixed: dict[str, Any] = {}
        if not self.plan.in_generations:
            fixed = dict(self.plan.start[slot]) if slot < len(self.plan.start) else {}
            fixed |= before.params if before else {}  # as far as it had come
        attributes = {"slot": slot, "attempt": 1}
        if before:
            attributes["attempt"] = before.user_attrs["attempt"] + ("released" not in before.user_attrs)
        system = {"fixed_params": fixed} if fixed else {}
        self._study.add_trial(create_trial(state=TrialState.WAITING, user_attrs=attributes, system_attrs=system))

    def _take(self, trial: FrozenTrial) -> bool:
        try:
            return self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        except UpdateFinishedTrialError:
            return False

    def _begin(self, slot: int, frozen: FrozenTrial, stop: Callable[[], bool]) -> Lease | None:
        halving = optuna.pruners.SuccessiveHalvingPruner(self.plan.prune) if self.plan.prune else None
        pruner = halving or optuna.pruners.NopPruner()
        sampler = sampler_for(self.plan, slot)
        study = optuna.load_study(study_name=self._name, storage=self._storage, sampler=sampler, pruner=pruner)
        trial = Trial(study, frozen._trial_id)
        try:
            with _lost_if_ended():
                trial.set_user_attr("owner", list(self.me))
                for name, distribution in distributions(self.plan).items():
                    if isinstance(distribution, IntDistribution):
                        trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
                    else:
                        low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
                        trial.suggest_float(name, low, high, log=distribution.log)  # type: ignore[attr-defined]
        except Lost:
            return None
        generation, index = self.plan.place(slot)
        values = {gene.name: float(trial.params[gene.name]) for gene in self.plan.genes}
        individual = Individual(slot, generation if self.plan.in_generations else 0, index, values)
        return Lease(study, trial, individual, self.folder, stop)

    def _end_those_of_the_dead(self, slots: dict[int, FrozenTrial]) -> None:
        for slot, trial in slots.items():
            if trial.state != TrialState.RUNNING or not self._dead(trial):
                continue
            with contextlib.suppress(UpdateFinishedTrialError):  # another process was faster, or it lives after all
                if trial.user_attrs["attempt"] >= ATTEMPTS:
                    reason = f"its worker died {ATTEMPTS} times"
                    self._storage.set_trial_user_attr(trial._trial_id, "reason", reason)
                self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            slots[slot] = self._storage.get_trial(trial._trial_id)

    def _dead(self, trial: FrozenTrial) -> bool:
        """Its process is gone from this machine, or has given no sign of life while this one looked on for `stale` seconds.
        Clocks of different machines are not compared."""
        owner = trial.user_attrs.get("owner")
        if owner and Process(*owner).gone(self.me):
            return True
        if owner and Process(*owner).table == self.me.table:
            return False
        sign, now = (trial._trial_id, trial.user_attrs.get("beat"), owner), time.monotonic()
        before, since = self._signs.get(trial.number, (None, now))
        if before != sign:
            since = now
        self._signs[trial.number] = sign, since
        return now - since > self.stale

    def _individual(self, slot: int, trial: FrozenTrial) -> Individual:
        generation, index = self.plan.place(slot)
        fitness = fitness_of(trial)
        return Individual(
            number=slot,
            generation=generation if self.plan.in_generations else 0,
            index=index,
            values={gene.name: float(trial.params[gene.name]) for gene in self.plan.genes if gene.name in trial.params},
            state=STATES[trial.state],
            fitness=None if fitness == float("-inf") else fitness,
            figures=trial.user_attrs.get("figures", {}),
            reason=trial.user_attrs.get("reason", ""),
            seconds=trial.user_attrs.get("seconds", 0.0),
        )


@contextlib.contextmanager
def _lost_if_ended() -> Iterator[None]:
    """What Optuna says about a trial that has ended is `Lost`."""
    try:
        yield
    except UpdateFinishedTrialError:
        raise Lost from None
    except ValueError as e:
        if "Cannot tell a" in str(e):
            raise Lost from None
        raise
