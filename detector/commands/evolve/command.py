"""The command `evolve`. It is imported by every command: what imports Optuna is imported where it is used."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import yaml

from detector.checkpoint.runs import next_run, numbered
from detector.commands.evolve.evolution import Evolution
from detector.data.datamodule import DetectionData
from detector.system.atomic_file import write_atomically
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print
from detector.system.signals import exit_on_signals
from detector.training.module import Detector
from detector.training.trainer import Trainer

POLL_INTERVAL = 1.0  # seconds between two looks at the study
DEFAULT = Evolution()


def run_evolution(trainer: Trainer, model: Detector, datamodule: DetectionData, evolve: Evolution = DEFAULT) -> None:
    """Search for better hyper-parameters: a training for each set of them, generation by generation.

    The same command continues a study that was interrupted, and run at the same time, here or on other machines that share the
    folder, takes part in it. Leaves the best in hyp_evolved.yaml, for
    `fit --config configs/yolo.yaml --config hyp_evolved.yaml --data.dataset FILE`.
    """
    from detector.commands.evolve.outputs import write_outputs
    from detector.commands.evolve.progress import Progress
    from detector.commands.evolve.settings import check_settings, planned
    from detector.commands.evolve.study import Study
    from detector.commands.evolve.worker import WorkerOptions
    from detector.commands.evolve.worker_pool import WorkerPool, environments

    if trainer.num_nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("evolve starts its processes itself: no torchrun, no trainer.num_nodes; run it on each machine")
    if datamodule.file is None:
        raise InputError("no data set: give --data.dataset FILE (a data.yaml), or demo")
    datamodule.prepare_data()
    datamodule.setup("fit")  # what is wrong with it is told once, before the first training
    folder = Path(trainer.default_root_dir)
    plan, settings, config = planned(trainer.configuration)
    study = Study(folder, evolve.storage, (plan, settings))
    check_settings(settings, study.settings, folder)
    shared, text = folder / "config.yaml", yaml.safe_dump(config, sort_keys=False)
    if not shared.is_file() or shared.read_text() != text:
        write_atomically(shared, lambda file: file.write(text.encode()))
    fit, seeds = [*trainer.train, "--config", str(shared)], [plan.seed + k for k in range(evolve.seeds)]
    on_gpu = isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator)
    variables = environments(evolve.workers, trainer.num_devices if on_gpu else 0)
    if len(variables) > 1 and datamodule.cache == "auto":
        fit += ["--data.cache", "none"]  # each would take its quarter of the same memory
    options = WorkerOptions(str(folder), evolve.storage, fit, evolve.deadline, seeds, evolve.trials, evolve.hours)
    progress = Progress(study, evolve.trials, evolve.seeds, len(variables), trainer)
    with exit_on_signals(), WorkerPool(options, variables) as workers, progress.bar:
        while workers.alive():
            progress.update()
            time.sleep(POLL_INTERVAL)
        progress.update()
    individuals = study.individuals()
    write_outputs(folder, plan.genes, individuals, plan.generations if plan.in_generations else 0, plan.fixed)
    left = plan.trials - sum(i.state != "running" for i in individuals)
    if left:
        rank_zero_print(f"{left} of {plan.trials} individuals are left; the same command goes on")
    rank_zero_print(f"study: {folder}")


def study_folder(configuration: Mapping[str, Any]) -> Path:
    """Where a command's study is: the folder given, the last runs/evolve-N if it is the same and unfinished, or a new one.

    Raises:
        InputError: an option makes no sense.
    """
    from detector.commands.evolve.settings import planned
    from detector.commands.evolve.study import Study

    evolve = Evolution(**configuration["evolve"])
    evolve.check()
    if evolve.study:
        return Path(evolve.study)
    for folder in numbered("evolve")[-1:]:
        with contextlib.suppress(InputError):  # not readable: leave it alone
            if (folder / "journal.log").is_file():
                study = Study(folder)
                if study.settings == planned(configuration)[1] and not study.finished():
                    rank_zero_print(f"going on with {folder}, which was begun by the same command")
                    return folder
    return next_run("evolve")
