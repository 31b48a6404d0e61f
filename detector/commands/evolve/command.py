"""The command `evolve`: what is searched for, the workers, and what is told meanwhile."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

import lightning as L
import torch
import yaml
from tqdm import tqdm

from detector.checkpoint.runs import next_run, numbered
from detector.commands.benchmark.command import leaving_on_signals
from detector.commands.evolve.individual import Individual
from detector.commands.evolve.outputs import write_outputs
from detector.commands.evolve.plan import Plan
from detector.commands.evolve.space import EVOLVED, YOLOV5_GENES, read_space
from detector.commands.evolve.start import start_values
from detector.commands.evolve.study import Study
from detector.commands.evolve.trial import PATIENCE
from detector.commands.evolve.worker import WorkerOptions
from detector.data.datamodule import DetectionData
from detector.system import parent
from detector.system.atomic_file import write_atomically
from detector.system.errors import InputError
from detector.system.options import flatten
from detector.training.module import Detector
from detector.training.trainer import Trainer

GLANCE = 1.0  # seconds between two looks at the study
RESTARTS = 3  # of a worker that was killed
# What may differ from one call for a study to the next.
OF_A_CALL = ("run", "config", "trainer.logger", "trainer.default_root_dir", "trainer.enable_progress_bar")
OF_A_STUDY = ("evolve.generations", "evolve.population", "evolve.sampler", "evolve.literal", "evolve.prune", "evolve.seeds")


@dataclass(frozen=True)
class Evolution:
    """How to search.

    Args:
        generations: Of the population; in all about generations x population trainings.
        population: Individuals of a generation.
        study: Folder of the study, joined or continued if it exists; default: the unfinished runs/evolve-N of this very
            command, else a new one.
        storage: Optuna storage URL in place of the journal in the study's folder.
        sampler: Who chooses values: YOLOv5's genetic algorithm, or Optuna's TPE, CMA-ES, NSGA-II. Only with yolov5 does what is
            trained not depend on the number of workers.
        literal: YOLOv5's algorithm to the letter: mutations of 0.1 in any unit, no survivors, mAP50 alone, new anchors.
        space: File that says what is searched for, with bounds; default: YOLOv5's 13 augmentation values.
        workers: Trainings at a time on this machine; default: one on each GPU, without GPUs one.
        hours: No new training after so many.
        trials: No new training after so many of the study.
        prune: End hopeless trainings early: only the better quarter goes on after a 16th of the epochs, and after each four
            times as many. Which, depends on who was there first.
        seeds: Trainings of each individual, whose mean fitness counts.
        deadline: Give a training up after so many seconds.
    """

    generations: int = 300
    population: int = 50
    study: str | None = None
    storage: str | None = None
    sampler: Literal["yolov5", "tpe", "cmaes", "nsgaii"] = "yolov5"
    literal: bool = False
    space: str | None = None
    workers: int | None = None
    hours: float | None = None
    trials: int | None = None
    prune: Literal["none", "halving"] = "none"
    seeds: int = 1
    deadline: float | None = None

    def check(self) -> None:
        """Raises:
        InputError: an option makes no sense, or two together.
        """
        least = {"generations": 1, "population": 2, "workers": 1, "trials": 1, "seeds": 1}
        for name, limit in least.items():
            value = getattr(self, name)
            if value is not None and value < limit:
                raise InputError(f"evolve.{name} is {value}; it must be at least {limit}")
        for name in ("hours", "deadline"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"evolve.{name} is {value:g}; it must be more than 0")
        if self.literal and self.sampler != "yolov5":
            raise InputError(f"evolve.literal true is about the sampler yolov5; leave it out with {self.sampler}")
        if self.storage and not self.study:
            raise InputError("evolve.storage needs --evolve.study DIR: trainings are left there, and it names the study")


USUAL = Evolution()


def run_evolution(trainer: Trainer, model: Detector, datamodule: DetectionData, evolve: Evolution = USUAL) -> None:
    """Search for better hyper-parameters: a training for each set of them, generation by generation.

    The same command continues a study that was interrupted, and run at the same time, here or on other machines that share the
    folder, takes part in it. Leaves the best in hyp_evolved.yaml, for
    `fit --config configs/yolo.yaml --config hyp_evolved.yaml --data.dataset FILE`.
    """
    if trainer.num_nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("evolve starts its processes itself: no torchrun, no trainer.num_nodes; run it on each machine")
    if datamodule.file is None:
        raise InputError("no data set: give --data.dataset FILE (a data.yaml), or demo")
    datamodule.prepare_data()
    datamodule.setup("fit")  # what is wrong with it is told once, before the first training
    folder = Path(trainer.default_root_dir)
    plan, settings, config = planned(trainer.configuration)
    study = Study(folder, evolve.storage, (plan, settings))
    _same(settings, study.settings, folder)
    seeds = [plan.seed + k for k in range(evolve.seeds)]
    shared = folder / "config.yaml"
    text = yaml.safe_dump(config, sort_keys=False)
    if not shared.is_file() or shared.read_text() != text:
        write_atomically(shared, lambda file: file.write(text.encode()))
    fit = [*trainer.train, "--config", str(shared)]
    options = WorkerOptions(str(folder), evolve.storage, fit, evolve.deadline, seeds, evolve.trials, evolve.hours)
    on_gpu = isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator)
    places = environments(evolve.workers, trainer.num_devices if on_gpu else 0)
    teller = _Teller(study, evolve, len(places), trainer)
    with leaving_on_signals(), _workers(options, places) as workers, teller:
        while workers.alive():
            teller.look()
            time.sleep(GLANCE)
        teller.look()
    individuals = study.individuals()
    write_outputs(folder, plan.genes, individuals, plan.generations if plan.in_generations else 0, plan.fixed)
    left = plan.trials - sum(i.state != "running" for i in individuals)
    if left:
        print(f"{left} of {plan.trials} individuals are left; the same command goes on")
    print(f"study: {folder}")


def study_folder(configuration: Mapping[str, Any]) -> Path:
    """Where a command's study is: the folder given, the last runs/evolve-N if it is the same and unfinished, or a new one.

    Raises:
        InputError: an option makes no sense.
    """
    evolve = Evolution(**configuration["evolve"])
    evolve.check()
    if evolve.study:
        return Path(evolve.study)
    for folder in numbered("evolve")[-1:]:
        with contextlib.suppress(InputError):  # not readable: leave it alone
            if (folder / "journal.log").is_file():
                study = Study(folder)
                if study.settings == planned(configuration)[1] and not study.finished():
                    print(f"going on with {folder}, which was begun by the same command")
                    return folder
    return next_run("evolve")


def planned(configuration: Mapping[str, Any]) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """What a study is about.

    Args:
        configuration: the whole configuration of `evolve`, in groups.

    Returns:
        the plan · option -> value of all that must be the same in each call for the study · the configuration of its trainings

    Raises:
        InputError: the space makes no sense.
    """
    evolve = Evolution(**configuration["evolve"])
    options = flatten(configuration)
    genes = [YOLOV5_GENES[name] for name in EVOLVED]
    fixed: dict[str, float] = {}
    if evolve.space:
        genes, fixed = read_space(Path(evolve.space), options)
    if evolve.literal:
        fixed["trainer.check_val_every_n_epoch"] = options["trainer.max_epochs"] or 1
        if options["model.anchors"] is None and all(gene.name != "anchors" for gene in genes):
            fixed.setdefault("model.anchors", 3)
    options |= fixed
    seed = options["seed_everything"]
    plan = Plan(
        genes=tuple(genes),
        start=tuple(start_values(genes, options, evolve.literal)),
        sampler=evolve.sampler,
        literal=evolve.literal,
        population=evolve.population,
        generations=evolve.generations,
        seed=0 if isinstance(seed, bool) or seed is None else seed,
        prune=max((options["trainer.max_epochs"] or 1) // 16, 1) if evolve.prune == "halving" else 0,
        fixed={option: value for option, value in fixed.items() if not option.startswith("trainer.")},
    )
    kept = {k: v for k, v in options.items() if not k.startswith((*OF_A_CALL, "evolve.")) or k in OF_A_STUDY}
    kept |= {f"the gene {gene.name}": gene._asdict() for gene in genes}
    config = {group: value for group, value in configuration.items() if group not in ("evolve", "run", "config")}
    config = json.loads(json.dumps(config))
    for option, value in fixed.items():
        *groups, name = option.split(".")
        place = config
        for group in groups:
            place = place[group]
        place[name] = round(value) if isinstance(place[name], int) or option == "model.anchors" else value
    config["trainer"]["default_root_dir"], config["trainer"]["logger"] = None, False
    return plan, json.loads(json.dumps(kept)), config


def _same(here: Mapping[str, Any], there: Mapping[str, Any], folder: Path) -> None:
    """Raises:
    InputError: a study was begun with other options; it names one.
    """
    for option in {**there, **here}:
        if here.get(option) != there.get(option):
            was, now = (json.dumps(side[option]) if option in side else "not there" for side in (there, here))
            raise InputError(f"{folder} was begun with other options: {option} is {was} in it and {now} here; "
                             "give the same, or another --evolve.study")  # fmt: skip


def environments(workers: int | None, devices: int) -> list[dict[str, str]]:
    """Variables for each worker: GPUs of its own, or its share of the processor's threads.

    Args:
        workers: of them; default: as many as there are GPUs for.
        devices: GPUs of a training; 0: it runs on the processor.

    Raises:
        InputError: there are fewer GPUs than a training takes.
    """
    if not devices:
        count = workers or 1
        return [{"OMP_NUM_THREADS": str(max(len(os.sched_getaffinity(0)) // count, 1))}] * count
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",") if named else [str(k) for k in range(torch.cuda.device_count())]
    groups = [gpus[k : k + devices] for k in range(0, len(gpus) - devices + 1, devices)]
    if not groups:
        raise InputError(f"trainer.devices is {devices}, but there are {len(gpus)} GPUs")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(groups[k % len(groups)])} for k in range(workers or len(groups))]


class _Workers:
    """The worker processes of this command."""

    def __init__(self, options: WorkerOptions, places: Sequence[Mapping[str, str]]) -> None:
        self._line = [sys.executable, "-P", "-m", "detector.commands.evolve.worker", json.dumps(asdict(options))]
        self._places = places
        self._running = [self._start(place) for place in places]
        self._restarts = 0

    def _start(self, place: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        home = str(Path(__file__).parents[3])
        path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH")) if p)
        variables = parent.environment(**place, PYTHONPATH=path)
        # In a session of its own: Ctrl-C reaches this process alone, which then asks the workers to stop.
        return subprocess.Popen(self._line, env=variables, stdout=said, stderr=said, start_new_session=True), said

    def alive(self) -> bool:
        """Whether any is at work. One that was killed is started again.

        Raises:
            InputError: one cannot go on.
        """
        for k, (process, said) in enumerate(self._running):
            code = process.poll()
            if code:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                if code > 0 or self._restarts == RESTARTS:
                    raise InputError(f"a worker ended: {lines[-1].removeprefix('error: ') if lines else f'exit code {code}'}")
                self._restarts += 1
                print(f"warning: a worker was killed (signal {-code}); another takes its place")
                self._running[k] = self._start(self._places[k])
        return any(process.poll() is None for process, _ in self._running)

    def stop(self) -> None:
        """Each asks its training for a checkpoint."""
        for process, _ in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE + 10
        try:
            for process, _ in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0))
        finally:
            for process, said in self._running:
                process.kill()
                process.wait()
                said.close()


@contextlib.contextmanager
def _workers(options: WorkerOptions, places: Sequence[Mapping[str, str]]) -> Iterator[_Workers]:
    workers = _Workers(options, places)
    try:
        yield workers
    finally:
        workers.stop()


class _Teller:
    """Says how it goes: a bar with the best so far and the time left, a line for each individual, the user's loggers."""

    def __init__(self, study: Study, evolve: Evolution, workers: int, trainer: Trainer) -> None:
        self.study, self.workers, self.trainer = study, workers, trainer
        self.total = min(study.plan.trials, evolve.trials or study.plan.trials)
        before = [i for i in study.individuals() if i.state != "running"]
        self.known = {i.number for i in before}
        plan = study.plan
        told = f"{plan.generations} generations of {plan.population}: {self.total} individuals"
        if evolve.seeds > 1:
            told += f", {evolve.seeds} trainings each"
        if before:
            told += f", {len(before)} of them done"
        print(f"{told}, {trainer.max_epochs} epochs a training, {workers} at a time; the first will tell how long it takes")
        self.bar = tqdm(total=self.total, initial=len(before), bar_format="{n_fmt}/{total_fmt} |{bar:30}| {desc}")
        self.told_cost = bool(before)

    def __enter__(self) -> "_Teller":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def look(self) -> None:
        """Tell what is new.

        Raises:
            InputError: nothing but failures.
        """
        individuals = self.study.individuals()
        ended = [i for i in individuals if i.state != "running"]
        new = [i for i in ended if i.number not in self.known]
        if not new:
            return
        done = [i for i in ended if i.state == "done" and i.fitness is not None]
        best = max(done, key=lambda i: (i.fitness or 0.0, -i.number), default=None)
        for individual in new:
            self.known.add(individual.number)
            self.bar.update()
            self.bar.write(told(individual))
            self._log(individual, best)
        mean = statistics.fmean(i.seconds for i in ended)
        hours = mean * max(self.total - len(ended), 0) / max(self.workers, len(individuals) - len(ended)) / 3600
        if not self.told_cost:
            self.told_cost = True
            left = self.total - len(ended)
            self.bar.write(f"the first took {mean:.0f} s; the {left} that are left take about {duration(hours)}")
        found = f"best {best.fitness:.4g} (trial {best.number}), " if best else ""
        self.bar.set_description_str(f"{found}{duration(hours)} left")
        if len(ended) >= self.study.plan.population and all(i.state == "failed" for i in ended):
            raise InputError(f"all {len(ended)} trainings failed; the first: {ended[0].reason}")

    def _log(self, individual: Individual, best: Individual | None) -> None:
        content = {f"evolve/{name}": value for name, value in individual.values.items()}
        if individual.fitness is not None:
            content["evolve/fitness"] = individual.fitness
        if best and best.fitness is not None:
            content["evolve/best"] = best.fitness
        for logger in self.trainer.loggers:
            logger.log_metrics(content, step=individual.number)
            logger.save()


def told(individual: Individual) -> str:
    """In a line."""
    place = f"trial {individual.number} (generation {individual.generation})"
    if individual.state == "failed":
        return f"{place} failed: {individual.reason}"
    fitness = "none" if individual.fitness is None else f"{individual.fitness:.4g}"
    return f"{place}: fitness {fitness}, {individual.seconds:.0f} s" + (f", {individual.reason}" if individual.reason else "")


def duration(hours: float) -> str:
    """
    >>> duration(0.01), duration(0.5), duration(30)
    ('36 s', '30 min', '30.0 h')
    """
    if hours < 1 / 30:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"
