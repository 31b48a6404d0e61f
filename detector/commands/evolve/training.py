"""What trains individuals on this machine: several `fit` processes at a time."""

import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial

from boltbox.detector.checkpoint.runs import IN_USE, claim
from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.sampler import best, ended
from boltbox.detector.commands.evolve.study import HEARTBEAT_INTERVAL, Outcome, Study
from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.operating_system import available_cores

POLL_INTERVAL = 0.5  # seconds between two looks at the trainings
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
    """An individual that is being trained, by a process of `fit`. trial: of Optuna's · line:
    command line that trains it · run: folder · environment: variables for its process."""

    trial: Trial
    line: Sequence[str]
    run: Path
    environment: Mapping[str, str]
    restarts: int = RESTARTS

    def start(self) -> None:
        """It continues from its last checkpoint if there is one."""
        claim(self.run, "fit")  # log.txt is in its folder before it is
        self.process = TrainingProcess(self.line, self.run / "log.txt", **self.environment)

    def poll(self) -> Outcome | None:
        """None while it lasts."""
        code = self.process.poll()
        if code is None:
            return None
        self.process.finish()  # what it has left running
        if (code < 0 or code > 128) and self.restarts:  # killed by a signal
            self.restarts -= 1
            self.start()
            return None
        file, reason = self.run / "metrics.json", self.process.reason(code)
        if code and IN_USE in reason:  # by a training whose command stood still and seemed dead
            self.start()
            return None
        if code or not file.is_file():
            return Outcome(None, reason=reason)
        epoch = json.loads(file.read_text())
        rows = {row["epoch"]: row for row in read_table(self.run / "metrics.csv")}
        row = rows.get(str(epoch["epoch"]), {})
        metrics = {k: float(v) for k, v in row.items() if k.startswith("val/") and v}
        if math.isfinite(epoch["fitness"]):
            return Outcome(epoch["fitness"], metrics)
        return Outcome(None, reason=f"its fitness is {epoch['fitness']}")


def train_all(
    study: Study,
    plan: Plan,
    fit: Sequence[str],
    workers: Sequence[Mapping[str, str]],
    on_end: Callable[[FrozenTrial], None],
) -> None:
    """Train until all individuals have ended, here or in another command. Whatever interrupts it,
    each training is asked for a checkpoint, and its individual goes back into the queue.

    Args:
        fit: command line that trains with the configuration of the study.
        workers: the environment of each; as many trainings run at a time.
        on_end: called after each individual that ended here.
    """
    free, trainings = list(workers), list[Training]()
    size, hours = plan.evolve.size, plan.evolve.hours or math.inf
    until, beat = time.monotonic() + 3600 * hours, -math.inf
    try:
        while True:
            if time.monotonic() - beat > HEARTBEAT_INTERVAL:
                beat = time.monotonic()
                study.heartbeat(training.trial for training in trainings)
            for training in list(trainings):
                if outcome := training.poll():
                    trainings.remove(training)
                    free.append(training.environment)
                    _record(study, training.trial, outcome, on_end)
            begun, may_start = study.individuals(), time.monotonic() < until
            if free and may_start and len(begun) < size:
                trainings.append(_begin(study, plan, fit, free.pop(0)))
            elif not trainings and (not may_start or len(ended(begun)) >= size):
                return
            else:
                time.sleep(POLL_INTERVAL)
    finally:
        for training in trainings:
            training.process.send_signal(signal.SIGTERM)  # it saves a checkpoint
        for training in trainings:
            training.process.finish(STOP_TIMEOUT)
            study.release(training.trial)


def _begin(
    study: Study, plan: Plan, fit: Sequence[str], environment: Mapping[str, str]
) -> Training:
    """The next individual's training."""
    trial = study.ask(plan)
    run = study.run(study.frozen(trial))
    options = {**plan.fixed, **{gene.option: trial.params[gene.name] for gene in plan.genes}}
    words = [word for k, v in options.items() for word in (f"--{k}", repr(v))]
    line = [*fit, *words, *QUIET.split(), "--run", str(run)]
    training = Training(trial, line, run, environment)
    training.start()
    return training


def _record(
    study: Study, trial: Trial, outcome: Outcome, on_end: Callable[[FrozenTrial], None]
) -> None:
    """How an individual ended; the best one alone keeps its checkpoints."""
    try:
        study.tell(trial, outcome)
    except UpdateFinishedTrialError:  # it seemed dead to another command, which has it now
        return
    found = ended(study.individuals())
    winner = best(found)
    for other in found:
        if other is not winner:  # a better one replaces it for good
            shutil.rmtree(study.run(other) / "checkpoints", ignore_errors=True)
    on_end(study.frozen(trial))


def environments(
    workers: int | None, devices: int, named: Sequence[int] = ()
) -> list[Mapping[str, str]]:
    """Environment variables for each worker: GPUs of its own, or its share of the processor's
    threads.

    Args:
        workers: of them; default: as many as there are GPUs for.
        devices: GPUs of a training; 0: it runs on the processor.
        named: the only GPUs to use, by their numbers among those that are visible.
    """
    if not devices:
        count = workers or 1
        return [{"OMP_NUM_THREADS": str(max(available_cores() // count, 1))}] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(k) for k in range(torch.cuda.device_count())]
    gpus = [gpus[k] for k in named] or gpus
    groups = [gpus[k : k + devices] for k in range(0, len(gpus) - devices + 1, devices)]
    chosen = [groups[k % len(groups)] for k in range(workers or len(groups))]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in chosen]
