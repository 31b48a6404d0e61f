"""What trains individuals on this machine: several `fit` processes at a time."""

import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial

from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.sampler import best, ended
from boltbox.detector.commands.evolve.study import HEARTBEAT_INTERVAL, Outcome, Study
from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError

POLL_INTERVAL = 0.5  # seconds between two looks at the trainings
# seconds that a training may take to save a checkpoint when it is asked to stop
STOP_TIMEOUT = 60.0
RESTARTS = 2  # of a run that is killed each time
# A run leaves metrics.csv, metrics.json, config.yaml, log.txt and, for a while, checkpoints.
QUIET = (
    "--doctor.enabled false --pictures.enabled false --report.enabled false "
    "--trainer.enable_progress_bar false --ckpt_path auto"
)
METRICS = ("P", "R", "mAP50", "mAP50-95", "fitness")


class Training:
    """An individual that is being trained, by a process of `fit`.

    Args:
        trial: of Optuna's.
        line: command line that trains it.
        run: folder.
        environment: variables for its process.
    """

    def __init__(
        self, trial: Trial, line: Sequence[str], run: Path, environment: Mapping[str, str]
    ) -> None:
        self.trial, self.run, self.environment = trial, run, environment
        self.line = [*line, *QUIET.split(), "--run", str(run)]
        self.restarts = RESTARTS
        self._start()

    def _start(self) -> None:
        """It continues from its last checkpoint if there is one."""
        self.process = TrainingProcess(self.line, self.run / "log.txt", **self.environment)

    def poll(self) -> Outcome | None:
        """None while it lasts."""
        code = self.process.poll()
        if code is None:
            return None
        self.process.finish()  # what it has left running
        if (code < 0 or code > 128) and self.restarts:  # killed by a signal
            self.restarts -= 1
            self._start()
            return None
        file = self.run / "metrics.json"
        if code or not file.is_file():
            return Outcome(None, reason=self.process.reason(code))
        epoch = json.loads(file.read_text())
        metrics = {name: float(epoch[name]) for name in METRICS}
        for row in read_table(self.run / "metrics.csv"):
            if int(row["epoch"]) == epoch["epoch"]:
                metrics |= {k: float(row[k]) for k in row if re.match("val/.*_loss", k) and row[k]}
        if math.isfinite(metrics["fitness"]):
            return Outcome(metrics["fitness"], metrics)
        return Outcome(None, reason=f"its fitness is {metrics['fitness']}")


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
        fit: Sequence[str],
        free: Sequence[Mapping[str, str]],
        on_end: Callable[[FrozenTrial], None],
    ) -> None:
        self.study, self.plan, self.fit, self.on_end = study, plan, fit, on_end
        self.free, self.trainings = list(free), list[Training]()

    def run(self) -> None:
        """Until all individuals have ended, here or in another command. Whatever interrupts it,
        each training is asked for a checkpoint, and its individual goes back into the queue."""
        size, hours = self.plan.evolve.size, self.plan.evolve.hours or math.inf
        until, beat = time.monotonic() + 3600 * hours, -math.inf
        try:
            while True:
                if time.monotonic() - beat > HEARTBEAT_INTERVAL:
                    beat = time.monotonic()
                    self.study.heartbeat(training.trial for training in self.trainings)
                for training in list(self.trainings):
                    self._look_at(training)
                begun, may_start = self.study.individuals(), time.monotonic() < until
                if self.free and may_start and len(begun) < size:
                    self._start()
                elif not self.trainings and (not may_start or len(ended(begun)) >= size):
                    return
                else:
                    time.sleep(POLL_INTERVAL)
        finally:
            for training in self.trainings:
                training.process.send_signal(signal.SIGTERM)  # it saves a checkpoint
            for training in self.trainings:
                training.process.finish(STOP_TIMEOUT)
                self.study.release(training.trial)

    def _start(self) -> None:
        trial = self.study.ask(self.plan)
        genes = {gene.option: gene.used(trial.params[gene.name]) for gene in self.plan.genes}
        options = {**self.plan.fixed, **genes}
        line = [*self.fit, *(word for k, v in options.items() for word in (f"--{k}", repr(v)))]
        run = self.study.run(self.study.frozen(trial))
        self.trainings.append(Training(trial, line, run, self.free.pop(0)))

    def _look_at(self, training: Training) -> None:
        outcome = training.poll()
        if outcome is None:
            return
        self.trainings.remove(training)
        self.free.append(training.environment)
        try:
            self.study.tell(training.trial, outcome)
        except UpdateFinishedTrialError:  # it seemed dead to another command, which has it now
            return
        found = ended(self.study.individuals())
        winner = best(found)
        for trial in found:
            if trial is not winner:  # a better one replaces it for good
                shutil.rmtree(self.study.run(trial) / "checkpoints", ignore_errors=True)
        self.on_end(self.study.frozen(training.trial))


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
