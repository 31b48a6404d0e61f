"""The command `benchmark`: trains some seconds with each setting, and recommends the fastest."""

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse.typing import PositiveFloat

from boltbox.detector.commands.command_line import split_options
from boltbox.detector.commands.training_process import FitCommand, TrainingProcess, prepare
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # most exact first
WORKERS = (0, 2, 4, 8, 16, 32)
GAIN = 1.05  # a setting is faster only by more than 5 %: runs differ by as much
START = 300  # seconds after which a training that has not measured anything is given up
Setting = Mapping[str, Any]  # value by option of `fit`
STOPWATCH = "boltbox.detector.commands.benchmark.stopwatch.Stopwatch"
# Training steps only: no validation, anchors, files or bar. The schedule is that after the warm-up,
# and the learning rate 0, because without its warm-up a training run may diverge. max_epochs stays:
# images per batch and per optimizer step depend on it; the clock ends the run, perhaps later.
BARE = (
    "--autoanchor.enabled false --doctor.enabled false --report.enabled false"
    " --warmup.warmup_epochs 0 --model.optim.lr0 0"
    " --trainer.check_val_every_n_epoch 1000000 --trainer.limit_val_batches 0"
    " --trainer.enable_progress_bar false --trainer.logger false --data.augment.close_mosaic 0"
)


def benchmark(
    trainer: L.Trainer,
    datamodule: DetectionData,
    fit_command: FitCommand,
    seconds: PositiveFloat = 10.0,
) -> None:
    """Measure how fast this machine trains, and recommend a precision and a number of workers.

    Each row is a training run with real steps: first in 32-true as typed, then with one option
    changed on top of the fastest setting so far.

    Args:
        seconds: Seconds to measure each row, after its first steps.

    Raises:
        InputError: The dataset cannot be used, or the first row could not be measured.
    """
    prepare(trainer, datamodule, "benchmark")
    plain = {"trainer.precision": PRECISIONS[0], "data.workers": datamodule.workers}
    on_gpu = trainer.strategy.root_device.type == "cuda"
    precisions = PRECISIONS if on_gpu else PRECISIONS[:2]
    changes: list[Setting] = [{"trainer.precision": precision} for precision in precisions[1:]]
    changes += [{"data.workers": n} for n in WORKERS if n < datamodule.workers]
    typed: list[str] = []
    for words in split_options(fit_command.typed):
        if words[0] not in ("--seconds", "--run", *(f"--{name}" for name in plain)):
            typed += words

    def measure(setting: Setting) -> float:
        line = fit_command.words + typed + words_of(setting) + BARE.split()
        with tempfile.TemporaryDirectory(prefix="boltbox-") as folder:
            report = Path(folder, "stopwatch.json")
            line += [
                f"--run={folder}/run",
                f"--trainer.callbacks+={STOPWATCH}",
                f"--trainer.callbacks.report={report}",
                f"--trainer.callbacks.seconds={seconds}",
            ]
            measured, error = attempt(line, report, START + seconds)
        options = shlex.join(words_of(setting))
        if error and setting is plain:
            raise InputError(f"nothing could be measured with {options}; {error}")
        if error:
            rank_zero_print(f"{options}: {error}")
            return 0.0
        rate: float = measured["images"] / measured["seconds"]
        waiting = f"{measured['waiting']:.0%} waiting for data"
        rank_zero_print(f"{options}: {rate:.3g} images/s, {waiting}")
        return rate

    with exit_on_signals():
        best = search(plain, changes, measure)
    print_fact("fastest", f"{program()} fit {shlex.join(typed + words_of(best))}")


def search(
    plain: Setting, changes: Sequence[Setting], measure: Callable[[Setting], float]
) -> Setting:
    """Try the plain setting, then each change on top of the fastest setting so far.

    Args:
        plain: The first setting.
        changes: To try in this order.
        measure: Images per second of a setting; 0: it failed.

    Returns:
        The fastest setting.
    """
    best = plain
    rate = measure(plain)
    for change in changes:
        setting = {**best, **change}
        changed_rate = measure(setting)
        if changed_rate > GAIN * rate:
            best = setting
            rate = changed_rate
    return best


def attempt(line: Sequence[str], report: Path, deadline: float) -> tuple[dict[str, Any], str]:
    """Run a command that leaves the Stopwatch's report.

    Args:
        line: The command line.
        report: The Stopwatch's file.
        deadline: Seconds after which the process and all that it started are killed.

    Returns:
        The Stopwatch's measurements, and an error in one line; one of them is empty.
    """
    process = TrainingProcess(line, report.with_suffix(".log"))
    code = process.finish(deadline)
    if code is None:
        return {}, f"not done within {deadline:g} s"
    if code == 0 and report.is_file():
        measured = json.loads(report.read_text())
        if measured["steps"]:
            return measured, ""
    return {}, process.reason(code)


def words_of(setting: Setting) -> list[str]:
    """A setting as words of the command line.

    >>> words_of({"data.workers": 2})
    ['--data.workers', '2']
    """
    words = []
    for option, value in setting.items():
        words += [f"--{option}", str(value)]
    return words
