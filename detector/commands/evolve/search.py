"""The command `evolve`: what it prints, logs, and leaves in its folder."""

import contextlib
import math
import shlex
import shutil
import statistics
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.loggers import Logger
from optuna.trial import FrozenTrial, TrialState

from boltbox.detector.commands.evolve.import_hyp import overlay_text
from boltbox.detector.commands.evolve.space import Gene
from boltbox.detector.commands.evolve.storage import shown
from boltbox.detector.commands.evolve.study import Evolution, Plan, Study, planned
from boltbox.detector.commands.evolve.trainings import shared_options, train_all, workers_of
from boltbox.detector.commands.training_process import FitCommand, prepare
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.report.charts import picture, short
from boltbox.detector.report.table import number as metric
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.csv_table import write_table
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, program
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.training.batch_size import step_seconds
from boltbox.detector.training.module import Detector

METRICS = {  # YOLOv5's column -> metric, in YOLOv5's order
    "metrics/precision": "val/P",
    "metrics/recall": "val/R",
    "metrics/mAP_0.5": "val/mAP50",
    "metrics/mAP_0.5:0.95": "val/mAP50-95",
    "val/box_loss": "val/box_loss",
    "val/obj_loss": "val/obj_loss",
    "val/cls_loss": "val/cls_loss",
}
DEFAULT = Evolution()


def run_evolution(
    trainer: L.Trainer,
    model: Detector,
    datamodule: DetectionData,
    fit_command: FitCommand,
    evolve: Evolution = DEFAULT,
) -> None:
    """Search for better hyper-parameters: train once per set of them, generation by generation.

    The same command with the study's folder as --run continues it. Leaves the best in
    hyp_evolved.yaml, for `fit --config config.yaml --config hyp_evolved.yaml --trainer.max_epochs
    N`, both files of the study's folder.
    """
    plan = planned(evolve, fit_command.configuration)
    prepare(trainer, datamodule, "evolve")
    folder = Path(trainer.default_root_dir)
    study = Study(folder, plan)
    config = shared_options(fit_command.configuration)
    write_atomically(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    workers = workers_of(trainer, datamodule, fit_command, evolve.workers)
    at_a_time = len(workers.free)
    epochs = plan.settings["trainer.max_epochs"]

    def time_left(seconds: float) -> timedelta:
        left = evolve.size - len(study.ended())
        running = study.trials(TrialState.RUNNING)  # on all machines
        return timedelta(seconds=round(seconds * left / max(at_a_time, len(running))))

    def on_end(trial: FrozenTrial) -> None:
        report(study, trainer.loggers, trial)
        ended = study.ended()
        print_fact("left", f"{evolve.size - len(ended)}, ETA {time_left(mean_seconds(ended))}")
        write_outputs(study)

    ended = study.ended()
    estimate = "unknown"
    if ended:
        estimate = f"about {time_left(mean_seconds(ended))}"
    else:
        with contextlib.suppress(torch.OutOfMemoryError):  # the trainings say what to do about it
            seconds = epochs * epoch_seconds(trainer, model, datamodule)
            if trainer.strategy.root_device.type != "cuda":
                seconds *= at_a_time  # they share the processor
            estimate = f"over {time_left(seconds)} by a step's time; better after a training"
    size = f"{evolve.size}, in {evolve.generations} generations of {evolve.population}"
    print_fact("runs", f"{size}; {len(ended)} done")
    limit = f"no more after {evolve.hours:g} hours" if evolve.hours else "no limit of time"
    print_fact("each", f"{epochs} epochs, {at_a_time} at a time, {limit}")
    print_fact("expected", estimate)
    print_fact("continue", f"--run {shlex.quote(str(folder))}")
    if evolve.storage:
        print_fact("storage", f"{evolve.study} in {shown(study.url)}")
    with exit_on_signals():
        train_all(study, workers, on_end)
    with study.storage_errors():
        write_outputs(study)
    print_fact("study", folder)
    evolved = folder / "hyp_evolved.yaml"
    if evolved.exists():
        files = shlex.join(["--config", str(folder / "config.yaml"), "--config", str(evolved)])
        print_fact("next", f"{program()} fit {files}")


def epoch_seconds(trainer: L.Trainer, model: Detector, data: DetectionData) -> float:
    """How long the steps of an epoch take, without loading images and validation."""
    batches = math.ceil(len(data.datasets["train"]) / data.batch_size)
    limit = trainer.limit_train_batches
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    images = math.ceil(data.batch_size / trainer.num_devices)
    return batches * step_seconds(trainer, model, data.image_size, images)


def report(study: Study, loggers: Sequence[Logger], trial: FrozenTrial) -> None:
    """Print and log the result of an individual; only the best one keeps its checkpoints.

    Args:
        study: with the result.
        loggers: get a row of values.
        trial: the individual.

    Raises:
        InputError: all training runs of the first generation failed.
    """
    ended = study.ended()
    best = study.best()
    if not best and len(ended) >= study.plan.evolve.population:
        raise InputError(
            f"none of {len(ended)} training runs succeeded; the first failed:"
            f" {ended[0].user_attrs['reason']}"
        )
    for other in ended:
        if other != best:
            shutil.rmtree(study.run(other) / "checkpoints", ignore_errors=True)
    best_fitness = best.value if best else None
    metrics = {f"evolve/{name}": value for name, value in trial.params.items()}
    if trial.value is not None:
        metrics |= {"evolve/fitness": trial.value, "evolve/best": best_fitness}
    for logger in loggers:
        logger.log_metrics(metrics, step=trial.number)
        logger.save()
    result = f"fitness {metric(trial.value)} {trial.user_attrs['reason']}"
    print_fact(f"trial {trial.number}", f"{result.rstrip()}; best {metric(best_fitness)}")


def write_outputs(study: Study) -> None:
    """Write all files of a study; one that cannot be written is reported, and evolution continues.

    evolve.csv: one row per individual that has ended. YOLOv5's columns come first: its seven
    metrics, then the genes by its names; what reads its file reads this one.
    hyp_evolved.yaml: the best individual's values, an overlay for `fit`. evolve.png: fitness over
    the value of each gene, later trials darker. These exist once an individual has a fitness.

    Args:
        study: with the results.
    """
    rows = [_row(study.plan.genes, trial) for trial in study.ended()]
    write_table(study.folder / "evolve.csv", rows)
    best = study.best()
    if not best:
        return
    overlay = study.folder / "hyp_evolved.yaml"
    with not_fatal(overlay):
        write_atomically(overlay, _overlay(study.plan, len(rows), best))
    drawing = study.folder / "evolve.png"
    with not_fatal(drawing):
        _draw(study, drawing)


def _row(genes: Sequence[Gene], trial: FrozenTrial) -> dict[str, Any]:
    """Of evolve.csv."""
    metrics = trial.user_attrs["metrics"]
    row: dict[str, Any] = {column: metrics.get(name) for column, name in METRICS.items()}
    for gene in genes:
        row[gene.name] = trial.params[gene.name]
    row["generation"] = trial.user_attrs["generation"]
    row["trial"] = trial.number
    row["state"] = "failed" if trial.value is None else "done"
    row["fitness"] = trial.value
    row["seconds"] = round(mean_seconds([trial]), 1)
    row["reason"] = trial.user_attrs["reason"]
    return row


def mean_seconds(trials: Sequence[FrozenTrial]) -> float:
    """Mean duration of training runs; of one that was interrupted, since it was continued.

    Args:
        trials: individuals that have ended.

    Returns:
        Seconds.
    """
    durations = [trial.duration.total_seconds() for trial in trials if trial.duration]
    return statistics.fmean(durations)


def _overlay(plan: Plan, count: int, best: FrozenTrial) -> str:
    """The best of this number of individuals, for `fit --config`."""
    comment = f"The best of {count} individuals: trial {best.number}, fitness {best.value:.5g}"
    options = {gene.option: best.params[gene.name] for gene in plan.genes}
    return overlay_text(options, [comment])


def _draw(study: Study, path: Path) -> None:
    """Fitness over the value of each gene, five genes per row, to a PNG file."""
    trials = study.trials(TrialState.COMPLETE)
    fitness = [trial.value for trial in trials]
    age = [trial.number for trial in trials]
    rows = math.ceil(len(study.plan.genes) / 5)
    with picture(path, 15, 3 * rows, fitted=False) as figure:
        for number, gene in enumerate(study.plan.genes, 1):
            axis = figure.add_subplot(rows, 5, number)
            values = [trial.params[gene.name] for trial in trials]
            axis.set_title(f"fitness by {short(gene.name)}")
            if gene.log:  # its own ticks may all be outside the range
                axis.set_xscale("log")
                ends = sorted({min(values), max(values)})
                axis.set_xticks(ends, [f"{x:.2g}" for x in ends])
                axis.minorticks_off()
            else:
                axis.locator_params("x", nbins=4)
            axis.tick_params(labelleft=number % 5 == 1)  # the same for all
            axis.scatter(values, fitness, c=age, cmap="Blues", edgecolors="0.5")
