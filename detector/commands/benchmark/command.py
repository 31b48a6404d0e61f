"""The command `benchmark`: what is measured on this machine, and the checks before it."""

import argparse
import contextlib
import json as json_
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import torch

from detector.commands.benchmark.measure import measure
from detector.commands.benchmark.report import Report
from detector.commands.benchmark.setting import PRECISIONS, settings
from detector.data.datamodule import DetectionData
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print
from detector.system.signals import exit_on_signals
from detector.training.compilation import compiler_missing
from detector.training.module import Detector
from detector.training.trainer import Trainer


def benchmark(
    trainer: Trainer,
    model: Detector,
    datamodule: DetectionData,
    seconds: float = 10.0,
    rows: int = 12,
    rounds: int = 1,
    deadline: float = 300.0,
    json: bool = False,
) -> None:
    """How fast this machine trains: images/s, memory, waiting for data by precision, devices, workers, compilation and cache.

    Each row is a training of its own with real steps, on one device and on all GPUs (on a CPU in two processes), with
    trainer.strategy (default ddp) and up to data.workers workers. Leaves benchmark.json, .md and .png in the run's folder.

    Args:
        seconds: Measure each row for so long, after its start and its first steps.
        rows: Measure so many rows at most; those that differ from the first in one thing come before the others.
        rounds: Measure all rows so many times; the fastest trial of each counts. For machines that others use too.
        deadline: Give a trial up after so many seconds, its start included.
        json: Print the report as JSON instead of a table.

    Raises:
        InputError: the data set cannot be used, an option makes no sense, or no row could be measured.
    """
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        report = _report(trainer, model, datamodule, seconds, rows, deadline, rounds)
    print(json_.dumps(report.content()) if json else f"\n{report.table()}\nreport: {trainer.default_root_dir}")


def _report(
    trainer: Trainer, model: Detector, data: DetectionData, seconds: float, most: int, deadline: float, rounds: int
) -> Report:
    for option, value in (("seconds", seconds), ("rows", most), ("deadline", deadline), ("rounds", rounds)):
        if value <= 0:
            raise InputError(f"{option} is {value:g}; it must be more than 0")
    if trainer.num_nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("benchmark measures one machine and starts its processes itself: no torchrun, no trainer.num_nodes")
    strategy, options = trainer.named_strategy, typed_for_fit(trainer.typed)
    if not isinstance(strategy, str):
        raise InputError("benchmark takes trainer.strategy by its name, like ddp")
    if data.file is None:
        raise InputError("no data set: give --data.dataset FILE (a data.yaml), or demo")
    data.prepare_data()
    data.setup("fit")  # what is wrong with it is told once, before the first row
    on_gpu = isinstance(trainer.accelerator, L.pytorch.accelerators.CUDAAccelerator)
    several = trainer.num_devices if trainer.num_devices > 1 else torch.cuda.device_count() if on_gpu else 2
    planned = settings(
        PRECISIONS if on_gpu else PRECISIONS[:2],
        "ddp" if strategy == "auto" else strategy,
        sorted({1, several}),
        len(os.sched_getaffinity(0)),
        data.workers,
        compilable=not model.hparams["multi_scale"] and not data.rect and compiler_missing() is None,
        cache=data.cache,
    )
    if len(planned) > most:
        rank_zero_print(f"{most} of {len(planned)} combinations are measured; --rows {len(planned)} takes all")
    with exit_on_signals():
        report = measure(trainer.train, options, planned[:most], Path(trainer.default_root_dir), seconds, deadline, rounds)
    if report.chosen is None:
        raise InputError(f"no row could be measured; {report.failures()[0]}")
    return report


def typed_for_fit(typed: Sequence[str]) -> list[str]:
    """What the user typed without the options that `fit` has not or that each row sets.

    >>> typed_for_fit(["--seconds", "3", "--data.image_size", "320", "--json", "--run=x", "--data.workers", "4"])
    ['--data.image_size', '320']
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    rows_own = ("trainer.precision", "trainer.strategy", "trainer.devices", "model.compile", "data.cache", "data.workers")
    for option in ("seconds", "rows", "rounds", "deadline", "run", *rows_own):
        parser.add_argument(f"--{option}")
    parser.add_argument("--json", action="store_true")
    return parser.parse_known_args(typed)[1]
