"""The whole recipe for a Trainer of one's own, and what the CLI has in common with that."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar

from callbacks.configuration import recipe_callbacks
from callbacks.epoch_lines import EpochLines
from callbacks.iterations import Iterations
from callbacks.metrics_files import MetricsFiles
from callbacks.pictures import Pictures
from callbacks.progress import Progress
from callbacks.report import Report
from callbacks.run_folder import RunFolder
from callbacks.run_state import RunState
from detector.checkpoint.atomic_io import AtomicCheckpointIO
from detector.checkpoint.runs import next_run
from detector.training.precision import DEFAULT, usable_precision
from detector.training.trainer_options import TRAINER_OPTIONS


def recipe(run: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Arguments for a Trainer of your own, which then trains, and leaves behind, what `cli.py fit` does.

    trainer = L.Trainer(**recipe(max_epochs=100, devices=2, callbacks=[Warmup(warmup_epochs=1)]))
    trainer.fit(Detector(data.names), data)

    Args:
        run: folder of the run; default: runs/fit-NUMBER.
        options: of the Trainer; what is given goes before the recipe's. A callback of a kind that belongs to the recipe takes
            the place of the recipe's own, others come after it; plugins are added.

    Returns:
        Keyword arguments of `L.Trainer`, for one Trainer: callbacks have a state.
    """
    folder, given = run or options.get("default_root_dir") or own_folder("fit"), as_list(options.get("callbacks"))
    chosen = [next((c for c in given if isinstance(c, kind)), None) or kind() for kind in recipe_callbacks().values()]
    others = [c for c in given if c not in chosen]
    go_on = f'trainer.fit(detector, data, ckpt_path="{Path(folder) / "checkpoints" / "last.ckpt"}")'
    bar = options.get("enable_progress_bar") is not False
    kind, strategy = options.get("accelerator", "auto"), str(options.get("strategy", "auto"))
    precision = usable_precision(str(options.get("precision") or DEFAULT), kind, "fit", strategy)
    return {
        **TRAINER_OPTIONS,
        **options,
        "precision": precision,
        "default_root_dir": str(folder),
        "callbacks": in_order([RunFolder(), EpochLines(go_on), RunState()], chosen, others, bar),
        "plugins": [*as_list(options.get("plugins")), AtomicCheckpointIO()],
    }


def in_order(
    first: Sequence[L.Callback], chosen: Sequence[L.Callback], others: Sequence[L.Callback], bar: bool
) -> list[L.Callback]:
    """All callbacks of a Trainer: those of the run, those with options, those that show what these leave, and the user's.

    Args:
        bar: show the progress; a progress bar among the others does it instead of ours.
    """
    last: list[L.Callback] = [c for kind in (Pictures, Report) for c in chosen if isinstance(c, kind)]
    if bar and not any(isinstance(c, ProgressBar) for c in others):
        last.append(Progress())
    return [*first, *(c for c in chosen if c not in last), Iterations(), MetricsFiles(), *last, *others]


def own_folder(command: str) -> Path:
    """The next folder runs/COMMAND-NUMBER; in a process that another one started, that one's."""
    started = "LOCAL_RANK" in os.environ and "BOLTBOX_RUN" in os.environ
    folder = Path(os.environ["BOLTBOX_RUN"]) if started else next_run(command)
    os.environ["BOLTBOX_RUN"] = str(folder)
    return folder


def as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
