"""The command `benchmark`: trains some seconds with each setting, and recommends the fastest."""

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse.typing import PositiveFloat

from boltbox.detector.commands.command_line import split_options
from boltbox.detector.commands.training_process import FitCommand, TrainingProcess, prepare
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.host import host
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.training.compilation import compiler_missing
from boltbox.detector.training.module import Detector

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # most exact first
WORKERS = (0, 2, 4, 8, 16, 32)
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


@dataclass(frozen=True)
class Row:
    """A measured training run.

    Attributes:
        setting: value by option of `fit`.
        measured: of the Stopwatch, empty after an error.
        error: one line, empty without an error.
    """

    setting: Setting
    measured: dict[str, Any]
    error: str = ""

    @property
    def rate(self) -> float:
        """Images per second; 0 after an error."""
        return self.measured["images"] / self.measured["seconds"] if self.measured else 0.0

    def __str__(self) -> str:
        if self.error:
            return f"{self.error} ({shlex.join(words_of(self.setting))})"
        memory = f"{self.measured['gpu_memory'] / 2**30:.2f} GiB"
        waiting = f"{self.measured['waiting']:.0%} waiting for data"
        options = shlex.join(words_of(self.setting))
        return f"{self.rate:.3g} images/s, {waiting}, {memory} on the GPU ({options})"


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
        InputError: the dataset cannot be used, or no row could be measured.
    """
    prepare(trainer, datamodule, "benchmark")
    plain: Setting = {
        "trainer.precision": PRECISIONS[0],
        "data.workers": datamodule.workers,
        "model.compile": "false",
    }
    on_gpu = trainer.strategy.root_device.type == "cuda"
    precisions = PRECISIONS if on_gpu else PRECISIONS[:2]
    changes: list[Setting] = [{"trainer.precision": precision} for precision in precisions[1:]]
    changes += [{"data.workers": n} for n in WORKERS if n < datamodule.workers]
    has_fixed_shape = not model.options.multi_scale and not datamodule.rect
    if has_fixed_shape and compiler_missing() is None:
        changes.append({"model.compile": "true"})
    typed: list[str] = []
    for words in split_options(fit_command.typed):
        name = words[0].lstrip("-")
        if name not in ("seconds", "deadline", "run") and name not in plain:
            typed += words
    rows: list[Row] = []

    def measure(setting: Setting) -> Row:
        line = fit_command.words + typed + words_of(setting) + BARE.split()
        with tempfile.TemporaryDirectory(prefix="boltbox-") as folder:
            report = Path(folder, "stopwatch.json")
            line += ["--run", f"{folder}/run", f"--trainer.callbacks+={STOPWATCH}"]
            line += [f"--trainer.callbacks.report={report}"]
            line += [f"--trainer.callbacks.seconds={seconds}"]
            measured, error = attempt(line, report, deadline)
        rows.append(Row(setting, measured, error))
        print_fact(f"row {len(rows)}", rows[-1])
        return rows[-1]

    with exit_on_signals():
        best = search(plain, changes, measure)
    path = Path(trainer.default_root_dir, "benchmark.json")
    entries = []
    for row in rows:
        entry = dict(row.setting, images_per_second=row.rate)
        entries.append(entry | {"measured": row.measured, "error": row.error})
    content = {"host": host(), "rows": entries, "recommended": rows.index(best)}
    write_atomically(path, json.dumps(content, indent=1))
    if best.error:
        raise InputError(f"no row could be measured; row 1: {best.error}")
    print_fact("fastest", f"row {rows.index(best) + 1}, {best.rate:.3g} images/s")
    if best.measured["waiting"] > WAITING:
        print_fact("hint", f"{best.measured['waiting']:.0%} waiting for data; try --data.cache ram")
    rank_zero_print(f"{program()} fit {shlex.join(typed + words_of(best.setting))}")
    print_fact("report", path)


def search(plain: Setting, changes: Sequence[Setting], measure: Callable[[Setting], Row]) -> Row:
    """Try the plain setting, then each change on top of the fastest setting so far.

    Args:
        plain: the first setting.
        changes: to try in this order.
        measure: measures a setting.

    Returns:
        The fastest row.
    """
    best = measure(plain)
    for change in changes:
        row = measure(dict(best.setting) | dict(change))
        if row.rate > GAIN * best.rate:
            best = row
    return best


def attempt(line: Sequence[str], report: Path, deadline: float) -> tuple[dict[str, Any], str]:
    """Run a command that leaves the Stopwatch's report.

    Args:
        line: the command line.
        report: the Stopwatch's file.
        deadline: seconds after which the process and all that it started are killed.

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
