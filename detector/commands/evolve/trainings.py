"""The trainings of a study: several `fit` processes at a time on this machine."""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from optuna.trial import FrozenTrial, Trial, TrialState

from boltbox.detector.checkpoint.runs import IN_USE, claim, has_checkpoints
from boltbox.detector.commands.evolve.study import Outcome, Study
from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import available_cores
from boltbox.detector.system.rank_zero import print_fact

POLL_INTERVAL = 0.5  # seconds between two looks at the training runs
# seconds that a training may take to save a checkpoint when it is asked to stop
STOP_TIMEOUT = 60.0
PATIENCE = 300.0  # seconds without an answer of the storage, until the trainings are stopped
RESTARTS = 2  # of a run that is killed each time
# A run leaves metrics.csv, metrics.json, config.yaml, log.txt and, for a while, checkpoints.
QUIET = (
    "--doctor.enabled false --pictures.enabled false --report.enabled false "
    "--trainer.enable_progress_bar false --ckpt_path auto"
)


@dataclass
class Training:
    """A training in a process of `fit`.

    Attributes:
        line: command line that trains it.
        run: its run folder.
        environment: variables for the process.
        restarts: how often it is started again after a kill.
        outcome: the result; None while the training lasts.
    """

    line: Sequence[str]
    run: Path
    environment: Mapping[str, str]
    restarts: int = RESTARTS
    outcome: Outcome | None = None

    def start(self) -> None:
        """Start the process, which continues from its last checkpoint if there is one."""
        claim(self.run, "fit")  # log.txt is in the folder before the process can claim it
        self.process = TrainingProcess(self.line, self.run / "log.txt", **self.environment)

    def poll(self) -> Outcome | None:
        """The result, None while the training lasts."""
        code = self.process.poll()
        if code is None or self.outcome:
            return self.outcome
        self.process.finish()  # and end what it left running
        reason = self.process.reason(code)
        # killed by a signal; or the process of a command that was killed takes a moment to end
        if (code < 0 or code > 128 or IN_USE in reason) and self.restarts:
            self.restarts -= 1
            self.start()
            return None
        if code or not (self.run / "metrics.json").is_file():
            self.outcome = Outcome(None, reason=reason)
        else:
            self.outcome = self._outcome()
        return self.outcome

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
    on_end: Callable[[FrozenTrial], None],
) -> None:
    """Train until all individuals have ended or the time limit is over.

    If an exception ends it, each training is asked for a checkpoint; a later call continues them.

    Args:
        study: records the results.
        fit: command line that trains with the configuration of the study.
        workers: environment variables of each worker.
        on_end: called with each individual that has ended.
    """
    start = time.monotonic()
    hours = study.plan.evolve.hours or math.inf
    free = list(workers)
    trainings: list[tuple[Trial, Training]] = []
    try:
        while True:
            with study.storage_errors(PATIENCE):
                held = study.beat([trial.number for trial, _ in trainings])
                for individual, training in list(trainings):
                    number = individual.number
                    outcome = training.poll()
                    if outcome is None and number in held:
                        continue
                    ended = study.tell(individual, outcome) if outcome else None
                    if ended:
                        on_end(ended)
                    else:
                        print_fact(f"trial {number}", "another machine has taken it over")
                    training.process.finish()
                    trainings.remove((individual, training))
                    free.append(training.environment)
                is_late = time.monotonic() - start > 3600 * hours
                trial = study.ask() if free and study.has_next() and not is_late else None
                if trial:
                    trainings.append((trial, _begin(study, fit, trial, free[0])))
                    free.pop(0)
                    continue
                # an individual of another machine may have to be taken over
                if not trainings and (is_late or not study.trials(TrialState.RUNNING)):
                    return
            time.sleep(POLL_INTERVAL)
    finally:
        stop([training for _, training in trainings])


def train_each(
    trainings: Sequence[Training], workers: Sequence[Mapping[str, str]]
) -> Generator[Training]:
    """Train, as many at a time as there are workers. When it is closed, or an exception ends it,
    each training that has not ended saves a checkpoint.

    Args:
        trainings: in the order in which they start.
        workers: environment variables of each worker.

    Yields:
        Each training that has ended.

    Raises:
        InputError: a training failed.
    """
    waiting = list(trainings)
    running: list[Training] = []
    free = list(workers)
    try:
        while waiting or running:
            while waiting and free:
                training = waiting.pop(0)
                training.environment = free.pop()
                training.start()
                running.append(training)
            time.sleep(POLL_INTERVAL)
            for training in list(running):
                outcome = training.poll()
                if outcome and outcome.fitness is None:
                    raise InputError(f"{training.run}: the training failed: {outcome.reason}")
                if outcome:
                    running.remove(training)
                    free.append(training.environment)
                    yield training
    finally:
        stop(running)


def stop(trainings: Sequence[Training]) -> None:
    """End trainings; each saves a checkpoint."""
    for training in trainings:
        training.process.send_signal(signal.SIGTERM)
    for training in trainings:
        training.process.finish(STOP_TIMEOUT)


def _begin(
    study: Study, fit: Sequence[str], trial: Trial, environment: Mapping[str, str]
) -> Training:
    """Start the training of an individual."""
    run = study.run(trial)
    here = str(run.resolve())
    before = trial.user_attrs.get("run", here)
    if before != here and not has_checkpoints(run):
        print_fact(f"trial {trial.number}", f"starts again, as {before} is not on this machine")
    trial.set_user_attr("run", here)
    line = list(fit)
    for gene in study.plan.genes:
        line += [f"--{gene.option}", repr(trial.params[gene.name])]
    line += QUIET.split()
    line += ["--run", str(run)]
    training = Training(line, run, environment)
    training.start()
    return training


def environments(
    workers: int | None, devices: int, named: Sequence[int] = ()
) -> list[Mapping[str, str]]:
    """Environment variables that give each worker its GPUs, or its share of the CPU threads unless
    the user has set OMP_NUM_THREADS.

    Args:
        workers: number of workers; default: as many as there are GPUs for.
        devices: GPUs per training; 0: training on the CPU.
        named: the only GPUs to use, as indices into the visible ones.

    Returns:
        The variables of each worker.
    """
    if not devices:
        count = 1 if workers is None else workers
        share = str(max(available_cores() // count, 1))
        return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", share)}] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
    if named:
        gpus = [gpus[k] for k in named]
    groups = []
    for start in range(0, len(gpus) - devices + 1, devices):
        groups.append({"CUDA_VISIBLE_DEVICES": ",".join(gpus[start : start + devices])})
    count = len(groups) if workers is None else workers
    return [groups[k % len(groups)] for k in range(count)]
