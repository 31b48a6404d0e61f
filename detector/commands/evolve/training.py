"""What trains individuals on this machine: several `fit` processes at a time."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial

from boltbox.detector.commands.benchmark.trial import reason
from boltbox.detector.commands.evolve.individual import best, ended
from boltbox.detector.commands.evolve.plan import Plan
from boltbox.detector.commands.evolve.study import HEARTBEAT_INTERVAL, Outcome, Study
from boltbox.detector.distributed.process_group import child_environment
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
        self.run.mkdir(parents=True, exist_ok=True)
        variables, nothing = child_environment(**self.environment), subprocess.DEVNULL
        with open(self.run / "log.txt", "wb") as log:
            # In a session of its own: Ctrl-C reaches `evolve` alone, which then asks it to stop.
            self._process = subprocess.Popen(
                self.line, env=variables, stdin=nothing, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def poll(self, score: str) -> Outcome | None:
        """None while it lasts. score: the metric that is its fitness."""
        code = self._process.poll()
        if code is None:
            return None
        self.kill()  # what it has left running
        if (code < 0 or code > 128) and self.restarts:  # killed by a signal
            self.restarts -= 1
            self._start()
            return None
        file = self.run / "metrics.json"
        if code or not file.is_file():
            output = (self.run / "log.txt").read_text(errors="replace")
            return Outcome(None, reason=reason(code, output, math.inf))
        epoch = json.loads(file.read_text())
        metrics = {name: float(epoch[name]) for name in METRICS}
        for row in read_table(self.run / "metrics.csv"):
            if int(row["epoch"]) == epoch["epoch"]:
                losses = [k for k in row if k.startswith("val/") and k.endswith("_loss") and row[k]]
                metrics |= {name: float(row[name]) for name in losses}
        if math.isfinite(metrics[score]):
            return Outcome(metrics[score], metrics)
        return Outcome(None, reason=f"its fitness is {metrics[score]}")

    def ask_to_stop(self) -> None:
        """It saves a checkpoint."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Until it has stopped."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT)
        self.kill()

    def kill(self) -> None:
        """Nothing of it is left running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


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
                training.ask_to_stop()
            for training in self.trainings:
                training.wait()
                self.study.release(training.trial)

    def _start(self) -> None:
        trial = self.study.ask(self.plan)
        genes = {gene.option: gene.used(trial.params[gene.name]) for gene in self.plan.genes}
        options = {**self.plan.fixed, **genes}
        line = [*self.fit, *(word for k, v in options.items() for word in (f"--{k}", repr(v)))]
        run = self.study.run(self.study.frozen(trial))
        self.trainings.append(Training(trial, line, run, self.free.pop(0)))

    def _look_at(self, training: Training) -> None:
        outcome = training.poll("mAP50" if self.plan.evolve.literal else "fitness")
        if outcome is None:
            return
        self.trainings.remove(training)
        self.free.append(training.environment)
        # this command seemed dead to another one, which has the trial now
        with contextlib.suppress(UpdateFinishedTrialError):
            self.study.tell(training.trial, outcome)
        found = ended(self.study.individuals())
        for trial in found:
            if trial is not best(found):  # who is not the best once never will be
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
