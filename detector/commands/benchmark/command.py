"""The command `benchmark`: trains some seconds by each setting, and recommends the fastest."""

import json
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import lightning as L
import torch
from jsonargparse.typing import PositiveFloat

from boltbox.detector.commands.benchmark.search import (
    PRECISIONS,
    Row,
    Setting,
    Trial,
    attempt,
    recommendation,
    search,
    table,
    words,
    worker_counts,
)
from boltbox.detector.commands.command_line import split_options
from boltbox.detector.commands.training_process import prepare
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.host import host
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.training.compilation import compiler_missing
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer import Trainer

STOPWATCH = "boltbox.detector.commands.benchmark.stopwatch.Stopwatch"
# Real training steps and nothing beside them: no validation, anchors, files or bar. The schedule is
# that after the warm-up, and the learning rate 0, for without its warm-up a training may diverge.
BARE = {
    "autoanchor.enabled": "false",
    "doctor.enabled": "false",
    "report.enabled": "false",
    "warmup.warmup_epochs": "0",
    "model.optim.lr0": "0",
    "trainer.max_epochs": "1000000",
    "trainer.check_val_every_n_epoch": "1000000",
    "trainer.limit_val_batches": "0",
    "trainer.enable_progress_bar": "false",
    "trainer.logger": "false",
}


def benchmark(
    trainer: Trainer,
    model: Detector,
    datamodule: DetectionData,
    seconds: PositiveFloat = 10.0,
    deadline: PositiveFloat = 300.0,
) -> None:
    """How fast this machine trains, and which precision, workers, compilation, cache and devices
    are fastest.

    Each row is a training of its own with real steps: first as typed in 32-true on one device, then
    with one thing changed on top of what was fastest so far; last on all GPUs (on a CPU in two
    processes). Leaves benchmark.json in the run's folder.

    Args:
        seconds: Measure each row for so long, after its start and its first steps.
        deadline: Give a row up after so many seconds, its start included.

    Raises:
        InputError: the data set cannot be used, or no row could be measured.
    """
    strategy = trainer.configuration["trainer"]["strategy"]
    if not isinstance(strategy, str):
        raise InputError("benchmark takes trainer.strategy by its name, like ddp")
    prepare(trainer, datamodule, "benchmark")
    on_gpu = isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator)
    several = trainer.num_devices
    if several == 1:
        several = torch.cuda.device_count() if on_gpu else 2
    plain = {
        "trainer.precision": PRECISIONS[0],
        "trainer.devices": 1,
        "trainer.strategy": "auto",
        "data.workers": datamodule.workers,
        "data.cache": datamodule.cache,
        "model.compile": "false",
    }
    options = without(trainer.typed, {"seconds", "deadline", "run", *plain})
    changes: list[Setting] = [{"trainer.precision": p} for p in PRECISIONS[1 : 3 if on_gpu else 2]]
    changes += [{"data.workers": n} for n in worker_counts(datamodule.workers)]
    changes += [{"data.cache": "none"}] if datamodule.cache == "auto" else []
    if not model.hparams["multi_scale"] and not datamodule.rect and compiler_missing() is None:
        changes.append({"model.compile": "true"})
    if several > 1:
        strategy = "ddp" if strategy == "auto" else strategy
        changes.append({"trainer.devices": several, "trainer.strategy": strategy})

    def train(setting: Setting) -> Trial:
        trial = measure(
            [*trainer.train, *options, *words(setting), *words(BARE)], seconds, deadline
        )
        rank_zero_print(str(Row(setting, trial)))
        return trial

    with exit_on_signals():
        rows, best = search(plain, changes, train)
    entries = [
        {**row.setting, "images_per_second": row.trial.rate, **row.trial._asdict()} for row in rows
    ]
    path = Path(trainer.default_root_dir, "benchmark.json")
    content = {"host": host(), "rows": entries, "recommended": rows.index(best)}
    write_atomically(path, json.dumps(content, indent=1))
    if best.trial.error:
        raise InputError(f"no row could be measured; row 1: {best.trial.error}")
    print(f"\n{table(rows)}\n\n{recommendation(rows, best, options)}\nreport: {path}")


def measure(fit: Sequence[str], seconds: float, deadline: float) -> Trial:
    """A training with the Stopwatch, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="boltbox-") as folder:
        watch = Path(folder) / "stopwatch.json"
        line = [
            *fit,
            "--run",
            f"{folder}/run",
            f"--trainer.callbacks+={STOPWATCH}",
            f"--trainer.callbacks.report={watch}",
            f"--trainer.callbacks.seconds={seconds}",
        ]
        return attempt(line, watch, deadline)


def without(typed: Sequence[str], names: Collection[str]) -> list[str]:
    """What the user typed without these options.

    >>> without(["--seconds", "3", "--data.image_size", "320", "--run=x"], ["seconds", "run"])
    ['--data.image_size', '320']
    """
    parts = split_options(typed)
    return [word for part in parts if part[0].lstrip("-") not in names for word in part]
