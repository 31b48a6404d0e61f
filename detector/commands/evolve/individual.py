"""Individuals among the trials of a study of Optuna's."""

from collections.abc import Sequence

import optuna
from optuna.trial import FrozenTrial, TrialState


def number(trial: FrozenTrial) -> int:
    """Of the individual: that of the trial which was the first to train it."""
    return int(trial.system_attrs.get("failed_trial", trial.number))


def individuals(study: optuna.Study) -> list[FrozenTrial]:
    """The last trial of each that has ended or is being trained now, by number."""
    last = {number(t): t for t in study.get_trials(deepcopy=False)}
    # A command that is killed before its first heartbeat leaves a trial that runs for ever, without
    # a generation.
    begun = [t for t in last.values() if "generation" in t.user_attrs]
    return sorted((t for t in begun if t.state != TrialState.WAITING), key=number)


def ended(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that have a fitness or failed."""
    return [t for t in trials if t.state.is_finished()]


def fitness(trial: FrozenTrial) -> float:
    """-inf after a failure."""
    return float("-inf") if trial.value is None else trial.value


def best(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The fittest of those that have a fitness, among equals the earliest."""
    return max((t for t in trials if t.value is not None), key=fitness, default=None)


def seconds(trial: FrozenTrial) -> float:
    """That it took since it was begun, or continued, last."""
    return trial.duration.total_seconds() if trial.duration else 0.0
