"""A process that trains one individual after the other, as long as there are any.

The command `evolve` starts it as `python -m detector.commands.evolve.worker`, with its options as JSON.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from detector.commands.evolve.lease import Interrupted, Lease, Lost, Outcome, Stopped
from detector.commands.evolve.outputs import write_outputs
from detector.commands.evolve.study import Study
from detector.commands.evolve.trial import Training
from detector.system import parent
from detector.system.errors import InputError, in_one_line
from detector.system.signals import catch
from detector.system.terminal import printable

POLL_INTERVAL = 0.5  # seconds between two looks for work, while others are at the last individuals of a generation


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker does.

    Attributes:
        folder: of the study.
        storage: an Optuna storage, or None for the journal in the folder.
        fit: command line that trains.
        deadline: seconds after which a training is given up.
        seeds: of the trainings of an individual.
        limit: individuals that the study may have.
        hours: after which no further one is begun.
    """

    folder: str
    storage: str | None
    fit: list[str]
    deadline: float | None
    seeds: list[int]
    limit: int | None
    hours: float | None


def work(
    study: Study,
    objective: Callable[[Lease], Outcome],
    ended: Callable[[], None],
    stop: Callable[[], bool],
    limit: int | None = None,
    hours: float | None = None,
) -> None:
    """Until all individuals have ended.

    Args:
        objective: trains one; it calls `Lease.heartbeat` all the time and may raise what that raises. Any other exception is
            that individual's failure.
        ended: called after each.
        stop: whether to stop: asked between individuals and in `Lease.heartbeat`.
        limit: individuals that the study may have.
        hours: after which no further one is begun.
    """
    until = math.inf if hours is None else time.monotonic() + 3600 * hours
    while not stop() and time.monotonic() < until:
        lease = study.lease(stop, limit)
        if lease is None:
            if study.finished(limit):
                return
            time.sleep(POLL_INTERVAL)
            continue
        try:
            lease.end(_outcome(objective, lease))
        except Stopped:
            lease.release()
            return
        except Lost:
            continue
        ended()


def _outcome(objective: Callable[[Lease], Outcome], lease: Lease) -> Outcome:
    try:
        return objective(lease)
    except (Interrupted, OSError):  # a full disk is no fault of the individual
        raise
    except Exception as e:
        return Outcome(None, reason=f"{type(e).__name__}: {' '.join(str(e).split())}")


def stop_signal() -> Callable[[], bool]:
    """Whether SIGTERM, SIGINT or SIGHUP has come since; they do nothing else."""
    received: list[int] = []
    catch(lambda number, _: received.append(number))
    return lambda: bool(received)


def main(options: WorkerOptions) -> None:
    """Work on a study. It ends with its starter; what is wrong is said in a sentence, with exit code 2."""
    parent.die_with_parent()
    stop, folder = stop_signal(), Path(options.folder)
    try:
        study = Study(folder, options.storage)
        plan = study.plan
        training = Training(options.fit, folder / "trials", plan.genes, options.deadline, options.seeds, plan.literal)

        def ended() -> None:
            individuals = study.individuals()
            training.clean(individuals)
            write_outputs(folder, plan.genes, individuals, plan.generations if plan.in_generations else 0, plan.fixed)

        work(study, training, ended, stop, options.limit, options.hours)
    except (InputError, OSError) as e:
        print(f"error: {printable(in_one_line(e))}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main(WorkerOptions(**json.loads(sys.argv[1])))
