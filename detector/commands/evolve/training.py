"""Trains the individuals of a study: several `fit` processes at a time on this machine."""

import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from optuna.trial import Trial

from boltbox.detector.checkpoint.runs import IN_USE, claim
from boltbox.detector.commands.evolve.study import Outcome, Study
from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.operating_system import available_cores

POLL_INTERVAL = 0.5  # seconds between two looks at the training runs
# seconds that a training may take to save a checkpoint when it is asked to stop
STOP_TIMEOUT = 60.0
RESTARTS = 2  # of a run that is killed each time
# A run leaves metrics.csv, metrics.json, config.yaml, log.txt and, for a while, checkpoints.
QUIET = (
    "--doctor.enabled false --pictures.enabled false --report.enabled false "
    "--trainer.enable_progress_bar false --ckpt_path auto"
)


@dataclass
class Training:
    """The training of an individual, in a process of `fit`.

    Attributes:
        trial: of the individual.
        line: command line that trains it.
        run: its run folder.
        environment: variables for the process.
        restarts: how often it is started again after a kill.
    """

    trial: Trial
    line: Sequence[str]
    run: Path
    environment: Mapping[str, str]
    restarts: int = RESTARTS

    def start(self) -> None:
        """Start the process, which continues from its last checkpoint if there is one."""
        claim(self.run, "fit")  # log.txt is in the folder before the process can claim it
        self.started = time.monotonic()
        self.process = TrainingProcess(self.line, self.run / "log.txt", **self.environment)

    def expected_seconds(self, epochs: int) -> float | None:
        """Estimate the duration of the training, start included.

        Args:
            epochs: of the training.

        Returns:
            Seconds; None in the first epoch.
        """
        file = self.run / "metrics.csv"
        rows = read_table(file) if file.is_file() else []
        if not rows:
            return None
        first = time.monotonic() - self.started
        return first + (epochs - 1) * float(rows[0]["seconds"])

    def poll(self) -> Outcome | None:
        """The result, None while the training lasts."""
        code = self.process.poll()
        if code is None:
            return None
        self.process.finish()  # and end what it left running
        reason = self.process.reason(code)
        if IN_USE in reason:  # the process of a command that was killed takes a moment to end
            self.start()
            return None
        if (code < 0 or code > 128) and self.restarts:  # killed by a signal
            self.restarts -= 1
            self.start()
            return None
        if code or not (self.run / "metrics.json").is_file():
            return Outcome(None, reason=reason)
        return self._outcome()

    def _outcome(self) -> Outcome:
        best = json.loads((self.run / "metrics.json").read_text())
        if not math.isfinite(best["fitness"]):
            return Outcome(None, reason=f"its fitness is {best['fitness']}")
        metrics = {}
        for row in read_table(self.run / "metrics.csv"):
            for name, value in row.items():
                if row["epoch"] == str(best["epoch"]) and name.startswith("val/") and value:
                    metrics[name] = float(value)
        return Outcome(best["fitness"], metrics)


def train_all(
    study: Study,
    fit: Sequence[str],
    workers: Sequence[Mapping[str, str]],
    on_poll: Callable[[Training], None],
    on_end: Callable[[int], None],
) -> None:
    """Train until all individuals have ended or the time limit is over.

    If an exception ends it, each training is asked for a checkpoint; a later call continues them.

    Args:
        study: records the results.
        fit: command line that trains with the configuration of the study.
        workers: environment variables of each worker.
        on_poll: called with each running training several times per second.
        on_end: called with the number of each individual that has ended.
    """
    deadline = math.inf
    if study.plan.evolve.hours:
        deadline = time.monotonic() + 3600 * study.plan.evolve.hours
    free = list(workers)
    trainings: list[Training] = []
    try:
        while True:
            for training in list(trainings):
                on_poll(training)
                outcome = training.poll()
                if outcome:
                    trainings.remove(training)
                    free.append(training.environment)
                    study.tell(training.trial, outcome)
                    on_end(training.trial.number)
            if free and study.has_next() and time.monotonic() < deadline:
                trainings.append(_begin(study, fit, free.pop(0)))
            elif trainings:
                time.sleep(POLL_INTERVAL)
            else:
                return
    finally:
        for training in trainings:
            training.process.send_signal(signal.SIGTERM)  # it saves a checkpoint
        for training in trainings:
            training.process.finish(STOP_TIMEOUT)


def _begin(study: Study, fit: Sequence[str], environment: Mapping[str, str]) -> Training:
    """Start the training of the next individual."""
    trial = study.ask()
    run = study.run(trial.number)
    line = list(fit)
    for option, value in study.plan.fixed.items():
        line += [f"--{option}", repr(value)]
    for gene in study.plan.genes:
        line += [f"--{gene.option}", repr(trial.params[gene.name])]
    line += QUIET.split()
    line += ["--run", str(run)]
    training = Training(trial, line, run, environment)
    training.start()
    return training


def environments(
    workers: int | None, devices: int, named: Sequence[int] = ()
) -> list[Mapping[str, str]]:
    """Environment variables that give each worker its GPUs or its share of the CPU threads.

    Args:
        workers: number of workers; default: as many as there are GPUs for.
        devices: GPUs per training; 0: training on the CPU.
        named: the only GPUs to use, as indices into the visible ones.

    Returns:
        The variables of each worker.
    """
    if not devices:
        count = 1 if workers is None else workers
        threads = max(available_cores() // count, 1)
        return [{"OMP_NUM_THREADS": str(threads)}] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
    if named:
        gpus = [gpus[k] for k in named]
    groups = []
    for start in range(0, len(gpus) - devices + 1, devices):
        groups.append({"CUDA_VISIBLE_DEVICES": ",".join(gpus[start : start + devices])})
    count = len(groups) if workers is None else workers
    return list(itertools.islice(itertools.cycle(groups), count))
