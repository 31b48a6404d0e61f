"""A study that any number of processes on any number of machines work on.

Every individual has a number, its slot, and a trial of Optuna's; one that was interrupted gets a further trial under the same
number. Whoever looks for work adds the trial of the next open slot in state WAITING, and takes it by setting it RUNNING, which
a storage lets only one process do. Nothing is lost if a process is killed between any two of these steps: therefore Optuna's
RetryHeartbeatStaleTrialCallback is not used, which whoever ends a dead worker's trial must live to call.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from detector.commands.evolve.heartbeat import GRACE_PERIOD, Heartbeats
from detector.commands.evolve.individual import Individual, State
from detector.commands.evolve.journal import open_storage
from detector.commands.evolve.lease import Lease, Lost, lost_if_finished
from detector.commands.evolve.plan import Plan
from detector.commands.evolve.process import Process
from detector.commands.evolve.sampler import distributions, is_interrupted, official, sampler_for
from detector.system.errors import InputError

ATTEMPTS = 5  # at an individual whose worker died each time
STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Study:
    """One process's view of a study.

    Args:
        folder: of the study, where the journal is if there is no `url`.
        url: an Optuna storage.
        begin: plan and settings for a study that does not exist yet; None: it must exist.
        grace_period: seconds without a heartbeat after which a worker on another machine counts as dead.

    Attributes:
        plan: what it is about.
        settings: option -> value, of whoever began it.

    Raises:
        InputError: there is no study, or it cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        begin: tuple[Plan, dict[str, Any]] | None = None,
        grace_period: float = GRACE_PERIOD,
    ) -> None:
        self.folder, self.me, self._heartbeats = folder, Process.this(), Heartbeats(grace_period)
        self._storage = open_storage(folder, url)
        self._name = folder.resolve().name if url else "evolve"  # a database may hold several
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
        begun = [(s, t) for s, t in sorted(self.slots().items()) if t.state in STATES and not is_interrupted(t)]
        return [self._individual(slot, trial) for slot, trial in begun]

    def finished(self, limit: int | None = None) -> bool:
        """Whether the first `limit` individuals, or all, have ended."""
        return not self._unfinished(self.slots(), limit)

    def lease(self, stop: Callable[[], bool] = bool, limit: int | None = None) -> Lease | None:
        """An individual to train, or None if there is none now: others are at work on the rest of the generation.

        Interrupted individuals come first, for they have the lowest numbers.

        Args:
            stop: asked in `Lease.heartbeat`.
            limit: only the first so many individuals.
        """
        while True:
            slots = self.slots()
            self._end_trials_of_the_dead(slots)
            for slot in self._open(slots, limit):
                trial = slots.get(slot)
                if trial is None or is_interrupted(trial):
                    self._add(slot, trial)
                    break
                if trial.state == TrialState.WAITING and self._take(trial):
                    return self._begin(slot, trial, stop)
            else:
                return None

    def _unfinished(self, slots: dict[int, FrozenTrial], limit: int | None) -> list[int]:
        count = self.plan.trials if limit is None else min(limit, self.plan.trials)
        return [s for s in range(count) if s not in slots or not slots[s].state.is_finished() or is_interrupted(slots[s])]

    def _open(self, slots: dict[int, FrozenTrial], limit: int | None) -> list[int]:
        """Those whose values can be known and which have not ended."""
        unfinished = self._unfinished(slots, limit)
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
        pruner, sampler = halving or optuna.pruners.NopPruner(), sampler_for(self.plan, slot)
        study = optuna.load_study(study_name=self._name, storage=self._storage, sampler=sampler, pruner=pruner)
        trial = Trial(study, frozen._trial_id)
        try:
            with lost_if_finished():
                trial.set_user_attr("owner", list(self.me))
                for name, d in distributions(self.plan).items():
                    if isinstance(d, IntDistribution):
                        trial.suggest_int(name, d.low, d.high, log=d.log)
                    else:
                        trial.suggest_float(name, d.low, d.high, log=d.log)
        except Lost:
            return None
        return Lease(study, trial, self._individual(slot, self._storage.get_trial(frozen._trial_id)), self.folder, stop)

    def _end_trials_of_the_dead(self, slots: dict[int, FrozenTrial]) -> None:
        for slot, trial in slots.items():
            if trial.state != TrialState.RUNNING or not self._heartbeats.is_dead(trial, self.me):
                continue
            with contextlib.suppress(UpdateFinishedTrialError):  # another process was faster, or it lives after all
                if trial.user_attrs["attempt"] >= ATTEMPTS:
                    self._storage.set_trial_user_attr(trial._trial_id, "reason", f"its worker died {ATTEMPTS} times")
                self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            slots[slot] = self._storage.get_trial(trial._trial_id)

    def _individual(self, slot: int, trial: FrozenTrial) -> Individual:
        generation, index = self.plan.place(slot)
        return Individual(
            number=slot,
            generation=generation if self.plan.in_generations else 0,
            index=index,
            values={gene.name: float(trial.params[gene.name]) for gene in self.plan.genes if gene.name in trial.params},
            state=STATES[trial.state],
            fitness=trial.value,
            metrics=trial.user_attrs.get("metrics") or trial.user_attrs.get("figures", {}),  # older studies
            reason=trial.user_attrs.get("reason", ""),
            seconds=trial.user_attrs.get("seconds", 0.0),
        )
