"""A search from its begin to its end: what it prints and logs."""

import os
import statistics
from datetime import timedelta
from pathlib import Path

import lightning as L
import yaml
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial

from boltbox.detector.commands.evolve.individual import best, ended, number, seconds
from boltbox.detector.commands.evolve.outputs import write_outputs
from boltbox.detector.commands.evolve.plan import planned
from boltbox.detector.commands.evolve.study import FILE, Study
from boltbox.detector.commands.evolve.training import Workers, environments
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.report.table import number as metric
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.training.trainer import Trainer


def search(trainer: Trainer, datamodule: DetectionData) -> None:
    """The command `evolve`."""
    if trainer.num_nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError(
            "evolve starts its processes itself, on one machine: no torchrun, no trainer.num_nodes"
        )
    if datamodule.file is None:
        raise InputError("no data set: give --data.dataset FILE (a data.yaml), or demo")
    plan, settings, config = planned(trainer.configuration)
    datamodule.prepare_data()
    datamodule.setup("fit")  # what is wrong with it is reported once, before the first training
    folder = Path(trainer.default_root_dir)
    study = Study(folder)
    study.begin(settings)
    shared = folder / "config.yaml"
    text = yaml.safe_dump(config, sort_keys=False)
    write_atomically(shared, lambda file: file.write(text.encode()))
    on_gpu = isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator)
    variables = environments(plan.evolve.workers, trainer.num_devices if on_gpu else 0)
    fit = [*trainer.train, "--config", str(shared)]
    if len(variables) > 1 and datamodule.cache == "auto":
        fit += ["--data.cache", "none"]  # each would take its quarter of the same memory

    def on_end(trial: FrozenTrial) -> None:
        found = ended(study.individuals())
        winner, left = best(found), plan.evolve.size - len(found)
        if not winner and len(found) >= plan.evolve.population:
            raise InputError(
                f"none of {len(found)} trainings came to its end; the first:"
                f" {found[0].user_attrs.get('reason')}"
            )
        values = {**trial.params, "fitness": trial.value, "best": winner and winner.value}
        metrics = {f"evolve/{k}": v for k, v in values.items() if v is not None}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=number(trial))
            logger.save()
        eta = statistics.fmean(map(seconds, found)) * left / len(variables)
        rank_zero_print(
            f"trial {number(trial)}: fitness {metric(trial.value)} {trial.user_attrs['reason']};"
            f" best {metric(values['best'])}; {left} left, ETA {timedelta(seconds=round(eta))}"
        )
        write_outputs(study, plan)

    done = len(ended(study.individuals()))
    rank_zero_print(
        f"{plan.evolve.generations} generations of {plan.evolve.population}: {plan.evolve.size}"
        f" individuals, {done} of them done, {trainer.max_epochs} epochs a training,"
        f" {len(variables)} at a time; to continue after an interruption: --run {folder}"
    )
    try:
        with exit_on_signals():
            Workers(study, plan, fit, variables, on_end).run()
        write_outputs(study, plan)
    except StorageInternalError as e:
        raise InputError(f"{folder / FILE}: {e}; --run {folder} continues it") from None
    rank_zero_print(f"study: {folder}")
