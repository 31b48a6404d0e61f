"""All callbacks of a Trainer, for a script and for the commands."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar

from boltbox.callbacks.checkpoints import Checkpoints
from boltbox.callbacks.configuration import CALLBACKS
from boltbox.callbacks.epoch_table import EpochTable
from boltbox.callbacks.metrics_files import MetricsFiles
from boltbox.callbacks.progress import Progress
from boltbox.callbacks.run_folder import RunFolder
from boltbox.callbacks.run_state import RunState
from boltbox.detector.checkpoint.runs import claim, new_run
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import check_arguments
from boltbox.detector.system.rank_zero import is_first_process
from boltbox.detector.training.trainer_options import (
    TRAINER_OPTIONS,
    as_list,
    check_recipe,
    usable_precision,
)


def recipe(run: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Arguments for a Trainer of your own, with which it trains as `cli.py fit` does and writes the
    same files.

    trainer = L.Trainer(**recipe(max_epochs=100, devices=2, callbacks=[Warmup(warmup_epochs=1)]))
    trainer.fit(Detector(data.names), data)

    Args:
        run: Folder of the run; default: runs/fit-NUMBER.
        options: All options of L.Trainer; they override the recipe's. A callback of a class that
            belongs to the recipe replaces the recipe's own, others come after them.

    Returns:
        Keyword arguments of `L.Trainer`, for one Trainer only: callbacks have a state.

    Raises:
        InputError: An option does not go together with the recipe, or the folder is no run's.
    """
    check_arguments(recipe, {"run": run})
    check_arguments(L.Trainer, options)
    check_recipe(options)
    # of torch about Lightning; of Lightning about Detector and DetectionData, which have one hook
    warnings.filterwarnings("ignore", message=".*LeafSpec|You have overridden `on_before_batch_tr")
    callbacks = as_list(options.get("callbacks"))
    with_options: list[L.Callback] = []
    for kind in CALLBACKS.values():
        replacements = [callback for callback in callbacks if isinstance(callback, kind)]
        callback = replacements[0] if replacements else kind()
        check_arguments(kind, vars(callback))
        with_options.append(callback)
    others = [callback for callback in callbacks if callback not in with_options]
    folder = run or options.get("default_root_dir") or new_run("fit")
    if is_first_process():
        claim(Path(folder), "fit")  # loggers may write into it before RunFolder does
    checkpoints = Path(folder) / "checkpoints"
    for callback in with_options:
        if isinstance(callback, Checkpoints) and (checkpoints / "best.ckpt").is_file():
            callback.best_model_path = str(checkpoints / "best.ckpt")  # ckpt_path="best"
    resume = f'trainer.fit(detector, data, ckpt_path="{checkpoints}/last.ckpt")'
    bar = options.get("enable_progress_bar") is not False
    precision = usable_precision(
        str(options.get("precision") or TRAINER_OPTIONS["precision"]),
        options.get("accelerator", "auto"),
        "fit",
        str(options.get("strategy", "auto")),
    )
    changes = {
        "precision": precision,
        "default_root_dir": str(folder),
        "callbacks": in_order(RunFolder(), resume, with_options, others, bar),
    }
    return TRAINER_OPTIONS | options | changes


def in_order(
    run_folder: RunFolder,
    resume: str,
    with_options: Sequence[L.Callback],
    others: Sequence[L.Callback],
    bar: bool,
) -> list[L.Callback]:
    """All callbacks of a Trainer. The warm-up comes before the user's, so that a
    LearningRateMonitor logs the rates that are used.

    Args:
        run_folder: Of the run.
        resume: See EpochTable.
        with_options: In the order of CALLBACKS.
        others: The user's own.
        bar: Show the progress, unless there is a progress bar among the others.

    Raises:
        InputError: One is of a class that the recipe has.
    """
    callbacks = [run_folder, EpochTable(resume), RunState(), MetricsFiles(), *with_options]
    if bar and not any(isinstance(callback, ProgressBar) for callback in others):
        callbacks.append(Progress())
    recipes = set(map(type, callbacks))
    for callback in others:
        if type(callback) in recipes:
            raise InputError(
                f"{type(callback).__name__} is in the recipe already: give its options only"
                " (--ema.decay; in a script one callback, with the options)"
            )
        callbacks.append(callback)
    return callbacks
