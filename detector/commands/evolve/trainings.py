"""The trainings of `evolve` and `review`: several `fit` processes at a time on this machine."""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import lightning as L
import torch
from optuna.trial import FrozenTrial, Trial, TrialState

from boltbox.detector.checkpoint.runs import IN_USE, claim, has_checkpoints
from boltbox.detector.commands.evolve.study import Outcome, Study
from boltbox.detector.commands.training_process import FitCommand, TrainingProcess
from boltbox.detector.data.datamodule import DetectionData
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
# options of `evolve` and `review` that `fit` has not, or that each training has of its own
NOT_SHARED = ("evolve", "review", "apply", "out", "dry_run", "export", "run", "config")


@dataclass
class Training:
    """A training in a process of `fit`.

    Attributes:
        number: of the individual or the fold that it is for.
        line: command line that trains it, all but its run folder.
        run: its run folder.
        restarts: how often it is started again after a kill.
        outcome: the result; None while the training lasts.
    """

    number: int
    line: Sequence[str]
    run: Path
    restarts: int = RESTARTS
    outcome: Outcome | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process, which continues from its last checkpoint if there is one.

        Args:
            environment: variables for the process.
        """
        self.environment = environment
        claim(self.run, "fit")  # log.txt is in the folder before the process can claim it
        line = [*self.line, "--run", str(self.run)]
        self.process = TrainingProcess(line, self.run / "log.txt", **environment)

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
            self.start(self.environment)
            return None
        self.outcome = Outcome(None, reason=reason)
        if code == 0 and (self.run / "metrics.json").is_file():
            self.outcome = self._measured()
        return self.outcome

    def _measured(self) -> Outcome:
        best = json.loads((self.run / "metrics.json").read_text())
        if not math.isfinite(best["fitness"]):
            return Outcome(None, reason=f"its fitness is {best['fitness']}")
        metrics = {}
        for row in read_table(self.run / "metrics.csv"):
            for name, value in row.items():
                if row["epoch"] == str(best["epoch"]) and name.startswith("val/") and value:
                    metrics[name] = float(value)
        return Outcome(best["fitness"], metrics)


@dataclass
class Workers:
    """Each trains one training at a time. At the end of the context, each training that has not
    ended saves a checkpoint.

    Attributes:
        fit: command line of all trainings.
        free: environment variables of each worker that trains nothing.
        running: the trainings of the others.
    """

    fit: Sequence[str]
    free: list[Mapping[str, str]]
    running: list[Training] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for training in self.running:
            training.process.send_signal(signal.SIGTERM)
        for training in self.running:
            training.process.finish(STOP_TIMEOUT)

    def start(self, training: Training) -> None:
        """Let a free worker train."""
        training.start(self.free.pop(0))
        self.running.append(training)

    def end(self, training: Training) -> None:
        """Free the worker of a training, whose process is killed if it has not ended."""
        training.process.finish()
        self.running.remove(training)
        self.free.append(training.environment)

    def train(self, trainings: Sequence[Training]) -> Iterator[Training]:
        """Train all, in this order.

        Yields:
            Each training that has ended.

        Raises:
            InputError: a training failed.
        """
        waiting = list(trainings)
        while waiting or self.running:
            while waiting and self.free:
                self.start(waiting.pop(0))
            time.sleep(POLL_INTERVAL)
            for training in list(self.running):
                outcome = training.poll()
                if outcome and outcome.fitness is None:
                    raise InputError(f"{training.run}: the training failed: {outcome.reason}")
                if outcome:
                    self.end(training)
                    yield training


def workers_of(
    trainer: L.Trainer, datamodule: DetectionData, fit_command: FitCommand, count: int | None
) -> Workers:
    """Those of a command.

    Args:
        trainer: of the command.
        datamodule: of the command.
        fit_command: of the command; trainings have `shared_options` of it, in config.yaml of its
            folder.
        count: number of workers; default: as many as there are GPUs for.
    """
    devices = trainer.num_devices if trainer.strategy.root_device.type == "cuda" else 0
    variables = environments(count, devices, fit_command.named_gpus(trainer))
    fit = [*fit_command.words, "--config", str(Path(trainer.default_root_dir) / "config.yaml")]
    # GPUs are numbered from 0: a process sees no others than its own
    fit += ["--trainer.devices", str(trainer.num_devices), *QUIET.split()]
    if len(variables) > 1 and datamodule.cache == "auto":
        fit += ["--data.cache", "none"]  # each would take its quarter of the same memory
    return Workers(fit, variables)


def shared_options(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The options that all trainings of a command have, in groups.

    Args:
        configuration: the options of the command, in groups.
    """
    shared = {name: value for name, value in configuration.items() if name not in NOT_SHARED}
    shared["trainer"] = shared["trainer"] | {"default_root_dir": None, "logger": False}
    return shared


def train_all(study: Study, workers: Workers, on_end: Callable[[FrozenTrial], None]) -> None:
    """Train until all individuals have ended or the time limit is over.

    If an exception ends it, each training is asked for a checkpoint; a later call continues them.

    Args:
        study: records the results.
        workers: train with the configuration of the study.
        on_end: called with each individual that has ended.
    """
    start = time.monotonic()
    hours = study.plan.evolve.hours or math.inf
    with workers:
        while True:
            with study.storage_errors(PATIENCE):
                held = study.beat([training.number for training in workers.running])
                for training in list(workers.running):
                    number = training.number
                    outcome = training.poll()
                    if outcome is None and number in held:
                        continue
                    ended = study.tell(number, outcome) if outcome else None
                    if ended:
                        on_end(ended)  # again if the storage fails in it: not yet off the list
                    workers.end(training)
                    if not ended:
                        print_fact(f"trial {number}", "another machine has taken it over")
                is_late = time.monotonic() - start > 3600 * hours
                trial = study.ask() if workers.free and not is_late else None
                if trial:
                    workers.start(_training(study, workers.fit, trial))
                    continue
                # an individual of another machine may have to be taken over
                if not workers.running and (is_late or not study.trials(TrialState.RUNNING)):
                    return
            time.sleep(POLL_INTERVAL)


def _training(study: Study, fit: Sequence[str], trial: Trial) -> Training:
    """The training of an individual."""
    run = study.run(trial)
    here = str(run.resolve())
    before = trial.user_attrs.get("run", here)
    if before != here and not has_checkpoints(run):
        print_fact(f"trial {trial.number}", f"starts again, as {before} is not on this machine")
    trial.set_user_attr("run", here)
    line = list(fit)
    for gene in study.plan.genes:
        line += [f"--{gene.option}", repr(trial.params[gene.name])]
    return Training(trial.number, line, run)


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
