"""What trains individuals on this machine: several `fit` processes at a time."""

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial

from boltbox.detector.commands.evolve.evolution import Evolution
from boltbox.detector.commands.evolve.individual import best, ended, number
from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.study import HEARTBEAT_INTERVAL, Study
from boltbox.detector.commands.evolve.trial import Training
from boltbox.detector.system.errors import InputError

POLL_INTERVAL = 0.5  # seconds between two looks at the trainings


def environments(workers: int | None, devices: int) -> list[Mapping[str, str]]:
    """Environment variables for each worker: GPUs of its own, or its share of the processor's
    threads.

    Args:
        workers: of them; default: as many as there are GPUs for.
        devices: GPUs of a training; 0: it runs on the processor.

    Raises:
        InputError: there are fewer GPUs than a training takes.
    """
    if not devices:
        count = workers or 1
        return [{"OMP_NUM_THREADS": str(max(len(os.sched_getaffinity(0)) // count, 1))}] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(k) for k in range(torch.cuda.device_count())]
    groups = [gpus[k : k + devices] for k in range(0, len(gpus) - devices + 1, devices)]
    if not groups:
        raise InputError(f"trainer.devices is {devices}, but there are {len(gpus)} GPUs")
    chosen = [groups[k % len(groups)] for k in range(workers or len(groups))]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in chosen]


class Workers:
    """As many trainings at a time as there are environments.

    Args:
        fit: command line that trains with the configuration of the study.
        free: environments of the workers.
        on_end: called after each individual that ended here.
    """

    def __init__(
        self,
        study: Study,
        plan: Plan,
        evolve: Evolution,
        fit: Sequence[str],
        free: Sequence[Mapping[str, str]],
        on_end: Callable[[FrozenTrial], None],
    ) -> None:
        self.study, self.plan, self.fit, self.on_end = study, plan, fit, on_end
        self.size = min(plan.size, evolve.trials or plan.size)  # individuals of the study
        self.seconds = 3600 * (evolve.hours or math.inf)
        self.free, self.trainings = list(free), list[Training]()

    def run(self) -> None:
        """Until all individuals have ended, here or in another command. Whatever interrupts it,
        each training is asked for a checkpoint, and its individual goes back into the queue."""
        until, beat = time.monotonic() + self.seconds, -math.inf
        try:
            while True:
                if time.monotonic() - beat > HEARTBEAT_INTERVAL:
                    beat = time.monotonic()
                    self.study.heartbeat(training.trial for training in self.trainings)
                for training in list(self.trainings):
                    self._look_at(training)
                begun, may_start = self.study.individuals(), time.monotonic() < until
                if self.free and may_start and len(begun) < self.size:
                    self._start()
                elif not self.trainings and (not may_start or len(ended(begun)) >= self.size):
                    return
                else:
                    time.sleep(POLL_INTERVAL)
        finally:
            for training in self.trainings:
                training.ask_to_stop()
            for training in self.trainings:
                training.wait()
                self.study.release(training.trial)

    def _start(self) -> None:
        trial = self.study.ask(self.plan)
        genes = {gene.option: gene.used(trial.params[gene.name]) for gene in self.plan.genes}
        options = {**self.plan.fixed, **genes}
        line = [*self.fit, *(word for k, v in options.items() for word in (f"--{k}", repr(v)))]
        run = self._run(self.study.frozen(trial))
        score = "mAP50" if self.plan.literal else "fitness"
        self.trainings.append(Training(trial, line, run, self.free.pop(0), score))

    def _look_at(self, training: Training) -> None:
        outcome = training.poll()
        if outcome is None:
            return
        training.kill()
        self.trainings.remove(training)
        self.free.append(training.environment)
        # this command seemed dead to another one, which has the trial now
        with contextlib.suppress(UpdateFinishedTrialError):
            self.study.tell(training.trial, outcome)
        found = ended(self.study.individuals())
        for trial in found:
            if trial is not best(found):  # who is not the best once never will be
                shutil.rmtree(self._run(trial) / "checkpoints", ignore_errors=True)
        self.on_end(self.study.frozen(training.trial))

    def _run(self, trial: FrozenTrial) -> Path:
        return self.study.folder / "trials" / f"{number(trial):04d}"
