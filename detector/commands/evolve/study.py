"""A study: its options, its individuals in Optuna's storage, and their trainings: several `fit`
processes at a time on this machine.

An individual, one set of hyper-parameters, is an Optuna trial. It is RUNNING until its result is
known. After a kill the next command continues it: only one command at a time uses a study.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
import torch
from jsonargparse.typing import PositiveFloat, PositiveInt
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import URL

from boltbox.detector.checkpoint.runs import IN_USE, claim
from boltbox.detector.commands.evolve.genetic import fitness, next_values
from boltbox.detector.commands.evolve.space import (
    EVOLVED,
    YOLOV5_GENES,
    Gene,
    read_space,
    start_values,
)
from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.system.atomic_file import make_folder
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.operating_system import available_cores

FILE = "study.db"
POLL_INTERVAL = 0.5  # seconds between two looks at the training runs
# seconds that a training may take to save a checkpoint when it is asked to stop
STOP_TIMEOUT = 60.0
RESTARTS = 2  # of a run that is killed each time
# A run leaves metrics.csv, metrics.json, config.yaml, log.txt and, for a while, checkpoints.
QUIET = (
    "--doctor.enabled false --pictures.enabled false --report.enabled false "
    "--trainer.enable_progress_bar false --ckpt_path auto"
)
# What may differ from one command for a study to the next.
OF_A_COMMAND = (
    "run",
    "config",
    "trainer.logger",
    "trainer.default_root_dir",
    "trainer.enable_progress_bar",
    "evolve.space",
    "evolve.workers",
    "evolve.hours",
)


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Generations; generations x population individuals are trained. The 300 x 50 of
            YOLOv5: --config configs/evolve_yolov5.yaml.
        population: Individuals per generation.
        sampler: Source of values: YOLOv5's genetic algorithm, or Optuna's TPE.
        space: File of the values to search for, with bounds; default: YOLOv5's 13 augmentation
            values.
        workers: Simultaneous training runs; default: one per GPU, or one.
        hours: No new training after this many hours; null: no limit. The same command continues.
    """

    generations: PositiveInt = 10
    population: PositiveInt = 12
    sampler: Literal["yolov5", "tpe"] = "yolov5"
    space: str | None = None
    workers: PositiveInt | None = None
    hours: PositiveFloat | None = 12.0

    @property
    def size(self) -> int:
        """Individuals in all."""
        return self.population * self.generations


class Plan(NamedTuple):
    """What a study searches for, and how; it stays the same from its first trial to its last.

    Attributes:
        genes: numbers to search for.
        evolve: the options.
        start: values of the first individuals; the sampler chooses those of the others.
        seed: of everything random.
    """

    genes: tuple[Gene, ...]
    evolve: Evolution
    start: tuple[Mapping[str, float], ...] = ()
    seed: int = 0


def planned(configuration: Mapping[str, Any]) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """Plan a study.

    Args:
        configuration: the complete configuration of `evolve`, in groups.

    Returns:
        The plan, value by option for all options that must stay the same in the study, and the
        configuration of its training runs.

    Raises:
        InputError: the space or the population makes no sense.
    """
    evolve = Evolution(**configuration["evolve"])
    if evolve.sampler == "yolov5" and evolve.population < 2:
        raise InputError("evolve.population is 1; a child has two parents, so give 2 or more")
    options = flatten(configuration)
    genes = [YOLOV5_GENES[name] for name in EVOLVED]
    if evolve.space:
        genes = read_space(Path(evolve.space), options)
    start = tuple(start_values(genes, options))
    plan = Plan(tuple(genes), evolve, start, options["seed_everything"] or 0)
    settings: dict[str, Any] = {f"the gene {gene.name}": gene for gene in genes}
    for option, value in options.items():
        if not option.startswith(OF_A_COMMAND):
            settings[option] = value
    config = dict(configuration)
    for name in ("evolve", "run", "config"):
        config.pop(name, None)
    config["trainer"] = config["trainer"] | {"default_root_dir": None, "logger": False}
    return plan, json.loads(json.dumps(settings)), config


class Outcome(NamedTuple):
    """The result of an individual's training.

    Attributes:
        fitness: None if the training failed.
        metrics: of the best epoch.
        reason: why the training failed.
    """

    fitness: float | None
    metrics: Mapping[str, float] = {}
    reason: str = ""


class Study:
    """A study, which is created if it does not exist. Only one process at a time may use it.

    Args:
        folder: of the study.
        plan: what it searches for, and how.
        settings: value by option, for all options that must stay the same.

    Attributes:
        optuna: Optuna's study.

    Raises:
        InputError: its file is no study, or the study was begun with other options.
    """

    def __init__(self, folder: Path, plan: Plan, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.plan = plan
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        make_folder(folder)
        url = URL.create("sqlite", database=str((folder / FILE).resolve()))
        try:
            self.optuna = optuna.create_study(
                storage=url.render_as_string(),
                study_name="evolve",
                direction="maximize",
                load_if_exists=True,
            )
        except Exception as e:
            problem = in_one_line(e)[:200]
            raise InputError(f"{folder / FILE} cannot be read as a study: {problem}") from None
        begun = self.optuna.user_attrs.get("settings", settings)
        for option, (was, now) in differences([begun, settings]).items():
            raise InputError(
                f"{folder} was begun with other options: {option} is {was} in it and {now} here;"
                " give the same, or another --run"
            )
        self.optuna.set_user_attr("settings", settings)
        for values in plan.start:
            self.optuna.enqueue_trial(dict(values), skip_if_exists=True)
        for trial in self.trials(TrialState.RUNNING):  # of a command that was killed
            self.optuna._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """The individuals in any of these states, by number; without states all.

        Args:
            states: of Optuna.
        """
        return self.optuna.get_trials(deepcopy=False, states=states or None)

    def ended(self) -> list[FrozenTrial]:
        """The individuals that have a fitness or failed, by number."""
        return self.trials(TrialState.COMPLETE, TrialState.FAIL)

    def best(self) -> FrozenTrial | None:
        """The fittest individual, among equals the earliest; None while none has a fitness."""
        return max(self.trials(TrialState.COMPLETE), key=fitness, default=None)

    def has_next(self) -> bool:
        """Whether an individual is left to begin or to continue."""
        begun = self.trials(TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING)
        return len(begun) < self.plan.evolve.size

    def ask(self) -> Trial:
        """The next individual to train: an interrupted one, one of the start, or a new one."""
        genes, evolve, _, seed = self.plan
        ended = self.ended()
        number = len(self.trials())
        if evolve.sampler == "tpe":
            self.optuna.sampler = optuna.samplers.TPESampler(seed=1000 * seed + number)
        elif not self.trials(TrialState.WAITING):
            generations = evolve.generations
            values = next_values(genes, ended, number, evolve.population, generations, seed)
            self.optuna.enqueue_trial(values)
        trial = self.optuna.ask({gene.name: gene.distribution for gene in genes})
        trial.set_user_attr("generation", len(ended) // evolve.population)
        return trial

    def run(self, number: int) -> Path:
        """The run folder of an individual.

        Args:
            number: of the individual.
        """
        return self.folder / "trials" / f"{number:04d}"

    def tell(self, trial: Trial, outcome: Outcome) -> FrozenTrial:
        """Record the result of an individual.

        Args:
            trial: of the individual.
            outcome: of its training.
        """
        trial.set_user_attr("metrics", dict(outcome.metrics))
        trial.set_user_attr("reason", " ".join(outcome.reason.split()))
        state = TrialState.FAIL if outcome.fitness is None else TrialState.COMPLETE
        return self.optuna.tell(trial, outcome.fitness, state)


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
        self.process = TrainingProcess(self.line, self.run / "log.txt", **self.environment)

    def poll(self) -> Outcome | None:
        """The result, None while the training lasts."""
        code = self.process.poll()
        if code is None:
            return None
        self.process.finish()  # and end what it left running
        reason = self.process.reason(code)
        # killed by a signal; or the process of a command that was killed takes a moment to end
        if (code < 0 or code > 128 or IN_USE in reason) and self.restarts:
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
    trainings: list[Training] = []
    try:
        while True:
            for training in list(trainings):
                outcome = training.poll()
                if outcome:
                    trainings.remove(training)
                    free.append(training.environment)
                    on_end(study.tell(training.trial, outcome))
            is_late = time.monotonic() - start > 3600 * hours
            if free and study.has_next() and not is_late:
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
    return [groups[k % len(groups)] for k in range(count)]
