"""The command `benchmark`: what is measured on this machine, and the checks before it."""

import argparse
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch

from detector.benchmark.measure import measure
from detector.benchmark.report import Report
from detector.benchmark.setting import PRECISIONS, settings
from detector.data.datamodule import DetectionData
from detector.errors import InputError
from detector.say import say


def benchmark(
    trainer: L.Trainer,
    data: DetectionData,
    strategy: Any,
    fit: Sequence[str],
    options: Sequence[str],
    seconds: float,
    most: int,
    deadline: float,
    rounds: int,
) -> Report:
    """Measure the machine that the trainer is set up for.

    Args:
        strategy: Of several devices, by its name; auto: ddp.
        fit: Command that trains.
        options: The user's.
        seconds: For each trial.
        most: Rows.
        deadline: Seconds of each trial.
        rounds: Trials of each row.

    Raises:
        InputError: the data set cannot be used, an option makes no sense, or no row could be measured.
    """
    for option, value in (("seconds", seconds), ("rows", most), ("deadline", deadline), ("rounds", rounds)):
        if value <= 0:
            raise InputError(f"{option} is {value:g}; it must be more than 0")
    if trainer.num_nodes > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("benchmark measures one machine and starts its processes itself: no torchrun, no trainer.num_nodes")
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
    )
    if len(planned) > most:
        say(f"{most} of {len(planned)} combinations are measured; --rows {len(planned)} takes all")
    with _leaving_on_sigterm():
        report = measure(fit, options, planned[:most], Path(trainer.default_root_dir), seconds, deadline, rounds)
    if report.chosen is None:
        raise InputError(f"no row could be measured; {report.failures()[0]}")
    return report


@contextlib.contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """As on Ctrl-C: by an exception, so that no training is left running."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def typed_for_fit(typed: Sequence[str]) -> list[str]:
    """What the user typed without the options that `fit` has not or that each row sets.

    >>> typed_for_fit(["--seconds", "3", "--data.image_size", "320", "--json", "--run=x", "--data.workers", "4"])
    ['--data.image_size', '320']
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    rows_own = ("trainer.precision", "trainer.strategy", "trainer.devices", "data.workers")
    for option in ("seconds", "rows", "rounds", "deadline", "run", *rows_own):
        parser.add_argument(f"--{option}")
    parser.add_argument("--json", action="store_true")
    return parser.parse_known_args(typed)[1]
