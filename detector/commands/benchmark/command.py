"""The command `benchmark`: trains some seconds with each setting, and recommends the fastest."""

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
from jsonargparse.typing import PositiveFloat

from boltbox.detector.commands.command_line import split_options
from boltbox.detector.commands.training_process import FitCommand, TrainingProcess, prepare
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.report.table import aligned
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.host import host
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.training.compilation import compiler_missing
from boltbox.detector.training.module import Detector

GAIN = 1.05  # a setting is faster only by more than 5 %: runs differ by as much
WAITING = 0.2  # share of time waiting for data from which the loader is the bottleneck
Setting = Mapping[str, Any]  # value by option of `fit`
STOPWATCH = "boltbox.detector.commands.benchmark.stopwatch.Stopwatch"
# Training steps only: no validation, anchors, files or bar. The schedule is that after the warm-up,
# and the learning rate 0, because without its warm-up a training run may diverge.
BARE = (
    "--autoanchor.enabled false --doctor.enabled false --report.enabled false"
    " --warmup.warmup_epochs 0 --model.optim.lr0 0 --trainer.max_epochs 1000000"
    " --trainer.check_val_every_n_epoch 1000000 --trainer.limit_val_batches 0"
    " --trainer.enable_progress_bar false --trainer.logger false"
)


class Row(NamedTuple):
    """A measured training run.

    Attributes:
        measured: of the Stopwatch, empty after an error.
        error: one line, empty without an error.
        setting: value by option of `fit`.
    """

    measured: dict[str, Any]
    error: str
    setting: Setting = {}

    @property
    def rate(self) -> float:
        """Images per second; 0 after an error."""
        return self.measured["images"] / self.measured["seconds"] if self.measured else 0.0

    def cells(self) -> list[str]:
        """For the table: the values of the setting, then the measurements."""
        cells = [str(value) for value in self.setting.values()]
        if not self.measured:
            return cells + ["-", "-", "-"]
        memory = self.measured["gpu_memory"] / 2**30
        return cells + [f"{self.rate:.3g}", f"{self.measured['waiting']:.0%}", f"{memory:.2f}"]


def benchmark(
    trainer: L.Trainer,
    model: Detector,
    datamodule: DetectionData,
    fit_command: FitCommand,
    seconds: PositiveFloat = 10.0,
    deadline: PositiveFloat = 300.0,
) -> None:
    """Measure how fast this machine trains, and recommend precision, workers and compilation.

    Each row is a training run with real steps: first in 32-true as typed, then with one option
    changed on top of the fastest setting so far. Leaves benchmark.json in the run's folder.

    Args:
        seconds: Seconds to measure each row, after its first steps.
        deadline: Give a row up after this many seconds, its start included.

    Raises:
        InputError: the data set cannot be used, or no row could be measured.
    """
    prepare(trainer, datamodule, "benchmark")
    plain: Setting = {
        "trainer.precision": "32-true",
        "data.workers": datamodule.workers,
        "model.compile": "false",
    }
    changes: list[Setting] = [{"trainer.precision": "bf16-mixed"}]
    if trainer.strategy.root_device.type == "cuda":
        changes.append({"trainer.precision": "16-mixed"})
    changes += [{"data.workers": n} for n in worker_counts(datamodule.workers)]
    has_fixed_shape = not model.hparams["multi_scale"] and not datamodule.rect
    if has_fixed_shape and compiler_missing() is None:
        changes.append({"model.compile": "true"})
    options: list[str] = []
    for words in split_options(fit_command.typed):
        if words[0].lstrip("-") not in {"seconds", "deadline", "run", *plain}:
            options += words

    def train(setting: Setting) -> Row:
        line = fit_command.words + options + words_of(setting) + BARE.split()
        row = measure(line, seconds, deadline)._replace(setting=setting)
        result = row.error or f"{row.rate:.3g} images/s"
        print_fact("row", f"{' '.join(words_of(setting))}: {result}")
        return row

    with exit_on_signals():
        rows, best = search(plain, changes, train)
    entries = []
    for row in rows:
        result = {"images_per_second": row.rate, "measured": row.measured, "error": row.error}
        entries.append(dict(row.setting) | result)
    path = Path(trainer.default_root_dir, "benchmark.json")
    content = {"host": host(), "rows": entries, "recommended": rows.index(best)}
    write_atomically(path, json.dumps(content, indent=1))
    if best.error:
        raise InputError(f"no row could be measured; row 1: {best.error}")
    rank_zero_print(f"\n{table(rows)}\n\n{recommendation(rows, best, options)}")
    print_fact("report", path)


def measure(fit: Sequence[str], seconds: float, deadline: float) -> Row:
    """Train with the Stopwatch, in a folder that is removed afterwards.

    Args:
        fit: command line.
        seconds: to measure.
        deadline: seconds after which the run is given up.

    Returns:
        The row, without its setting.
    """
    with tempfile.TemporaryDirectory(prefix="boltbox-") as folder:
        report = Path(folder, "stopwatch.json")
        line = list(fit)
        line += ["--run", f"{folder}/run", f"--trainer.callbacks+={STOPWATCH}"]
        line += [f"--trainer.callbacks.report={report}", f"--trainer.callbacks.seconds={seconds}"]
        return attempt(line, report, deadline)


def attempt(line: Sequence[str], report: Path, deadline: float) -> Row:
    """Run a command that leaves the Stopwatch's report.

    Args:
        line: the command line.
        report: the Stopwatch's file.
        deadline: seconds after which the process and all that it started are killed.

    Returns:
        The row, without its setting.
    """
    process = TrainingProcess(line, report.with_suffix(".log"))
    code = process.finish(deadline)
    if code is None:
        return Row({}, f"not done within {deadline:g} s")
    if code == 0 and report.is_file():
        measured = json.loads(report.read_text())
        if measured["steps"]:
            return Row(measured, "")
    return Row({}, process.reason(code))


def search(
    plain: Setting, changes: Sequence[Setting], attempt: Callable[[Setting], Row]
) -> tuple[list[Row], Row]:
    """Try the plain setting, then each change on top of the fastest setting so far.

    Args:
        plain: the first setting.
        changes: to try in this order.
        attempt: measures a setting.

    Returns:
        All rows, and the fastest.
    """
    best = attempt(plain)
    rows = [best]
    for change in changes:
        row = attempt(dict(best.setting) | change)
        rows.append(row)
        if row.rate > GAIN * best.rate:
            best = row
    return rows, best


def worker_counts(maximum: int) -> list[int]:
    """0, 2, 4, 8, ... below a maximum.

    >>> worker_counts(6), worker_counts(1), worker_counts(0)
    ([0, 2, 4], [0], [])
    """
    return [n for n in (0, 2, 4, 8, 16, 32, 64) if n < maximum]


def words_of(setting: Setting) -> list[str]:
    """A setting as words of the command line.

    >>> words_of({"data.workers": 2})
    ['--data.workers', '2']
    """
    words = []
    for option, value in setting.items():
        words += [f"--{option}", str(value)]
    return words


def table(rows: Sequence[Row]) -> str:
    """All rows, for the terminal."""
    header = ["row", "precision", "workers", "compile"]
    lines = [header + ["images/s", "waiting for data", "GPU memory, GiB"]]
    for number, row in enumerate(rows, 1):
        lines.append([str(number)] + row.cells())
    return aligned(lines)


def recommendation(rows: Sequence[Row], best: Row, options: Sequence[str]) -> str:
    """The command line of the fastest row, with the reason.

    Args:
        rows: all.
        best: the fastest.
        options: the words that the user typed.
    """
    words = ["fit"] + list(options) + words_of(best.setting)
    gain = f"no other is more than {GAIN - 1:.0%} faster"
    if best is not rows[0] and rows[0].rate:
        gain = f"{best.rate / rows[0].rate:.2f} times row 1"
    text = f"recommended: row {rows.index(best) + 1}, {best.rate:.3g} images/s, {gain}"
    if best.measured["waiting"] > WAITING:
        text += (
            f"\nwaiting for data: {best.measured['waiting']:.0%} of the time; try"
            " --data.cache ram"
        )
    return f"{text}\n{program()} {shlex.join(words)}"
