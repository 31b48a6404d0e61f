"""What trains individuals on this machine: several `fit` processes at a time."""

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(groups[k % len(groups)])}
        for k in range(workers or len(groups))
    ]


@dataclass
class Workers:
    """As many trainings at a time as there are environments.

    Attributes:
        fit: command line that trains with the configuration of the study.
        environments: of the workers that are free.
        on_end: called after each individual that ended here.
    """

    study: Study
    plan: Plan
    evolve: Evolution
    fit: Sequence[str]
    environments: list[Mapping[str, str]]
    on_end: Callable[[FrozenTrial], None]
    trainings: list[Training] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Individuals that the study shall have."""
        return min(self.plan.size, self.evolve.trials or self.plan.size)

    def run(self) -> None:
        """Until all individuals have ended, here or elsewhere. Whatever interrupts it, each
        training is asked for a checkpoint, and its individual goes back into the queue."""
        until, beat = time.monotonic() + 3600 * (self.evolve.hours or math.inf), -math.inf
        try:
            while True:
                if time.monotonic() - beat > HEARTBEAT_INTERVAL:
                    beat = time.monotonic()
                    self.study.heartbeat(training.trial for training in self.trainings)
                for training in list(self.trainings):
                    # it was taken over just now
                    with contextlib.suppress(UpdateFinishedTrialError):
                        self._look_at(training)
                begun, may_start = self.study.individuals(), time.monotonic() < until
                if self.environments and may_start and len(begun) < self.size:
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
        frozen = self.study.frozen(trial)
        values = {gene.option: gene.used(frozen.params[gene.name]) for gene in self.plan.genes}
        line = [
            *self.fit,
            *(
                word
                for k, v in {**self.plan.fixed, **values}.items()
                for word in (f"--{k}", repr(v))
            ),
        ]
        score, environment = "mAP50" if self.plan.literal else "fitness", self.environments.pop(0)
        self.trainings.append(Training(trial, line, self._run(frozen), environment, score))

    def _look_at(self, training: Training) -> None:
        # A command that seemed dead to another one has lost the trial to it.
        lost = self.study.frozen(training.trial).state.is_finished()
        outcome = None if lost else training.poll()
        if not lost and outcome is None:
            return
        training.kill()
        self.trainings.remove(training)
        self.environments.append(training.environment)
        if outcome:
            self.study.tell(training.trial, outcome)
            found = ended(self.study.individuals())
            for trial in found:
                if trial is not best(found):  # who is not the best once never will be
                    shutil.rmtree(self._run(trial) / "checkpoints", ignore_errors=True)
            self.on_end(self.study.frozen(training.trial))

    def _run(self, trial: FrozenTrial) -> Path:
        return self.study.folder / "trials" / f"{number(trial):04d}"
