"""An individual in the hands of the worker that trains it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from detector.commands.evolve.heartbeat import HEARTBEAT_INTERVAL, HEARTBEATS
from detector.commands.evolve.individual import Individual


class Interrupted(Exception):
    """A training must be given up."""


class Stopped(Interrupted):
    """Because its worker was asked to stop: it is left so that it can go on later."""


class Lost(Interrupted):
    """Because another worker has taken it over, when this one had sent no heartbeat for long."""


@dataclass(frozen=True)
class Outcome:
    """What came of an individual. fitness: None after a failure · metrics: of the best epoch · reason: of a failure, or why it
    was cut short · pruned: ended early, as hopeless."""

    fitness: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    pruned: bool = False


class Lease:
    """An individual that is this process's to train, as long as it sends heartbeats.

    Attributes:
        individual: with its values.
        folder: of the study.
    """

    def __init__(
        self, study: optuna.Study, trial: Trial, individual: Individual, folder: Path, stop: Callable[[], bool]
    ) -> None:
        self.individual, self.folder = individual, folder
        self._study, self._trial, self._stop = study, trial, stop
        self._heartbeats, self._last, self._began = 0, time.monotonic(), time.monotonic()

    def heartbeat(self) -> None:
        """To be called every second or so.

        Raises:
            Interrupted: the training must be given up.
        """
        if self._stop():
            raise Stopped
        if time.monotonic() - self._last > HEARTBEAT_INTERVAL:
            self._heartbeats, self._last = self._heartbeats + 1, time.monotonic()
            with lost_if_finished():
                self._trial.set_user_attr(HEARTBEATS, self._heartbeats)

    def report(self, epochs: int, fitness: float) -> bool:
        """Report the fitness after so many epochs, once each; whether it is so low that the training should end."""
        with lost_if_finished():
            self._trial.report(fitness, epochs)
            return self._trial.should_prune()

    def end(self, outcome: Outcome) -> None:
        """Record what came of it.

        Raises:
            Lost: another worker has taken it over.
        """
        seconds = time.monotonic() - self._began
        state = TrialState.PRUNED if outcome.pruned else TrialState.FAIL if outcome.fitness is None else TrialState.COMPLETE
        with lost_if_finished():
            self._trial.set_user_attr("metrics", outcome.metrics)
            self._trial.set_user_attr("seconds", round(seconds, 1))
            if state != TrialState.COMPLETE:  # before the state: a failure without a reason counts as interrupted
                self._trial.set_user_attr("reason", outcome.reason or "no reason given")
            self._study.tell(self._trial, outcome.fitness if state == TrialState.COMPLETE else None, state)

    def release(self) -> None:
        """Leave it to whoever comes next."""
        with contextlib.suppress(Lost), lost_if_finished():
            self._trial.set_user_attr("released", True)
            self._study.tell(self._trial, state=TrialState.FAIL)


@contextlib.contextmanager
def lost_if_finished() -> Iterator[None]:
    """What Optuna raises about a trial that has ended becomes `Lost`."""
    try:
        yield
    except UpdateFinishedTrialError:
        raise Lost from None
    except ValueError as e:
        if "Cannot tell a" in str(e):
            raise Lost from None
        raise
