"""The command `benchmark`: trains for some seconds by each setting, and tells which is fastest on
this machine."""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import torch

from boltbox.detector.commands.benchmark.report import Row, content, recommendation, table
from boltbox.detector.commands.benchmark.setting import PRECISIONS, settings
from boltbox.detector.commands.benchmark.trial import Trial, attempt
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
    "model.lr0": "0",
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
    seconds: float = 10.0,
    rows: int = 12,
    deadline: float = 300.0,
) -> None:
    """How fast this machine trains: images/s and waiting for data by precision, devices, workers,
    compilation and cache.

    Each row is a training of its own with real steps, on one device and on all GPUs (on a CPU in
    two processes), with trainer.strategy (default ddp) and up to data.workers workers. Leaves
    benchmark.json in the run's folder.

    Args:
        seconds: Measure each row for so long, after its start and its first steps.
        rows: Measure so many rows at most; those that differ from the first in one thing come
            before the others.
        deadline: Give a row up after so many seconds, its start included.

    Raises:
        InputError: the data set cannot be used, an option makes no sense, or no row could be
            measured.
    """
    for option, value in (("seconds", seconds), ("rows", rows), ("deadline", deadline)):
        if value <= 0:
            raise InputError(f"{option} is {value:g}; it must be more than 0")
    if trainer.num_nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError(
            "benchmark measures one machine and starts its processes itself: no torchrun, no"
            " trainer.num_nodes"
        )
    strategy, options = trainer.named_strategy, typed_for_fit(trainer.typed)
    if not isinstance(strategy, str):
        raise InputError("benchmark takes trainer.strategy by its name, like ddp")
    if datamodule.file is None:
        raise InputError("no data set: give --data.dataset FILE (a data.yaml), or demo")
    datamodule.prepare_data()
    datamodule.setup("fit")  # what is wrong with it is told once, before the first row
    on_gpu = isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator)
    several = (
        trainer.num_devices
        if trainer.num_devices > 1
        else torch.cuda.device_count()
        if on_gpu
        else 2
    )
    planned = settings(
        PRECISIONS if on_gpu else PRECISIONS[:2],
        "ddp" if strategy == "auto" else strategy,
        sorted({1, several}),
        len(os.sched_getaffinity(0)),
        datamodule.workers,
        compilable=not model.hparams["multi_scale"]
        and not datamodule.rect
        and compiler_missing() is None,
        cache=datamodule.cache,
    )
    if len(planned) > rows:
        rank_zero_print(
            f"{rows} of {len(planned)} combinations are measured; --rows {len(planned)} takes all"
        )
    machine, measured, bare = (
        host(),
        list[Row](),
        [x for k, v in BARE.items() for x in (f"--{k}", v)],
    )
    path = Path(trainer.default_root_dir, "benchmark.json")
    with exit_on_signals():
        for number, setting in enumerate(planned[:rows], 1):
            chosen = [*options, *setting.options()]
            row = Row(setting, chosen, measure([*trainer.train, *chosen, *bare], seconds, deadline))
            measured.append(row)
            rank_zero_print(f"{number}/{len(planned[:rows])} {setting}: {row.summary()}")
            text = json.dumps(content(machine, measured), indent=1).encode()
            write_atomically(path, lambda file, text=text: file.write(text))  # type: ignore[misc]
    if all(row.trial.error for row in measured):
        raise InputError(f"no row could be measured; row 1: {measured[0].trial.error}")
    print(f"\n{table(measured)}\n\n{recommendation(measured)}\nreport: {path}")


def measure(fit: Sequence[str], seconds: float, deadline: float) -> Trial:
    """A training with the Stopwatch, in a folder that is gone afterwards."""
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


def typed_for_fit(typed: Sequence[str]) -> list[str]:
    """What the user typed without the options that `fit` has not or that each row sets.

    >>> typed_for_fit(["--seconds", "3", "--data.image_size", "320", "--run=x", "--data.workers", "4"])
    ['--data.image_size', '320']
    """  # noqa: E501
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    rows_own = (
        "trainer.precision",
        "trainer.strategy",
        "trainer.devices",
        "model.compile",
        "data.cache",
        "data.workers",
    )
    for option in ("seconds", "rows", "deadline", "run", *rows_own):
        parser.add_argument(f"--{option}")
    return parser.parse_known_args(typed)[1]
