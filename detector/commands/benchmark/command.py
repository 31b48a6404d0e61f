"""The command `benchmark`: trains some seconds by each setting, and recommends the fastest."""

import json
import shlex
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
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

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # most exact first
EVEN = 1.05  # a setting is faster only by more than 5 %: runs differ by as much
WAITING = 0.2  # from this share on, the loader is what to look at
Setting = Mapping[str, Any]  # value by option of `fit`
STOPWATCH = "boltbox.detector.commands.benchmark.stopwatch.Stopwatch"
# Real training steps and nothing beside them: no validation, anchors, files or bar. The schedule is
# that after the warm-up, and the learning rate 0, for without its warm-up a training may diverge.
BARE = (
    "--autoanchor.enabled false --doctor.enabled false --report.enabled false"
    " --warmup.warmup_epochs 0 --model.optim.lr0 0 --trainer.max_epochs 1000000"
    " --trainer.check_val_every_n_epoch 1000000 --trainer.limit_val_batches 0"
    " --trainer.enable_progress_bar false --trainer.logger false"
)


class Row(NamedTuple):
    """A training. measured: the Stopwatch's, empty after an error · error: in one line, empty if
    all went well · setting: what it was started with, value by option of `fit`."""

    measured: dict[str, Any]
    error: str
    setting: Mapping[str, Any] = {}

    @property
    def rate(self) -> float:
        """Images a second; 0 after an error."""
        return self.measured["images"] / self.measured["seconds"] if self.measured else 0.0

    def __str__(self) -> str:
        text = ", ".join(f"{option} {value}" for option, value in self.setting.items())
        if self.error:
            return f"{text}: {self.error}"
        return f"{text}: {self.rate:.3g} images/s, {self.measured['waiting']:.0%} waiting for data"


def benchmark(
    trainer: L.Trainer,
    model: Detector,
    datamodule: DetectionData,
    fit_command: FitCommand,
    seconds: PositiveFloat = 10.0,
    deadline: PositiveFloat = 300.0,
) -> None:
    """How fast this machine trains, and which precision, workers, compilation, cache and devices
    are fastest.

    Each row is a training of its own with real steps: first as typed in 32-true on one device, then
    with one thing changed on top of what was fastest so far; last on all GPUs (on a CPU in two
    processes). Leaves benchmark.json in the run's folder.

    Args:
        seconds: Seconds to measure each row, after its first steps.
        deadline: Give a row up after this many seconds, its start included.

    Raises:
        InputError: the data set cannot be used, or no row could be measured.
    """
    strategy = fit_command.configuration["trainer"]["strategy"]
    if not isinstance(strategy, str):
        raise InputError("benchmark takes trainer.strategy by its name, like ddp")
    prepare(trainer, datamodule, "benchmark")
    on_gpu = trainer.strategy.root_device.type == "cuda"
    several, named = trainer.num_devices, fit_command.named_gpus(trainer)
    if several == 1 and not named:
        several = torch.cuda.device_count() if on_gpu else 2
    plain = {
        "trainer.precision": PRECISIONS[0],
        "trainer.devices": f"{named[0]}," if named else 1,
        "trainer.strategy": "auto",
        "data.workers": datamodule.workers,
        "data.cache": datamodule.cache,
        "model.compile": "false",
    }
    options = without(fit_command.typed, {"seconds", "deadline", "run", *plain})
    changes: list[Setting] = [{"trainer.precision": p} for p in PRECISIONS[1 : 3 if on_gpu else 2]]
    changes += [{"data.workers": n} for n in worker_counts(datamodule.workers)]
    changes += [{"data.cache": "none"}] if datamodule.cache == "auto" else []
    if not model.options.multi_scale and not datamodule.rect and compiler_missing() is None:
        changes.append({"model.compile": "true"})
    if several > 1:
        strategy = "ddp" if strategy == "auto" else strategy
        devices = ",".join(map(str, named)) or several
        changes.append({"trainer.devices": devices, "trainer.strategy": strategy})

    def train(setting: Setting) -> Row:
        line = [*fit_command.words, *options, *words(setting), *BARE.split()]
        row = measure(line, seconds, deadline)._replace(setting=setting)
        rank_zero_print(str(row))
        return row

    with exit_on_signals():
        rows, best = search(plain, changes, train)
    entries = [
        {**r.setting, "images_per_second": r.rate, "measured": r.measured, "error": r.error}
        for r in rows
    ]
    path = Path(trainer.default_root_dir, "benchmark.json")
    content = {"host": host(), "rows": entries, "recommended": rows.index(best)}
    write_atomically(path, json.dumps(content, indent=1))
    if best.error:
        raise InputError(f"no row could be measured; row 1: {best.error}")
    print(f"\n{table(rows)}\n\n{recommendation(rows, best, options)}")
    print_fact("report", path)


def measure(fit: Sequence[str], seconds: float, deadline: float) -> Row:
    """A training with the Stopwatch, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="boltbox-") as folder:
        report = Path(folder, "stopwatch.json")
        line = [
            *fit,
            "--run",
            f"{folder}/run",
            f"--trainer.callbacks+={STOPWATCH}",
            f"--trainer.callbacks.report={report}",
            f"--trainer.callbacks.seconds={seconds}",
        ]
        return attempt(line, report, deadline)


def attempt(line: Sequence[str], report: Path, deadline: float) -> Row:
    """Run a command of ours that leaves the Stopwatch's `report`, and all that it starts. After
    `deadline` seconds it is given up."""
    process = TrainingProcess(line, report.with_suffix(".log"))
    code = process.finish(deadline)
    if code is None:
        return Row({}, f"not done within {deadline:g} s")
    measured = json.loads(report.read_text()) if code == 0 and report.is_file() else {}
    return Row(measured, "") if measured.get("steps") else Row({}, process.reason(code))


def without(typed: Sequence[str], names: Collection[str]) -> list[str]:
    """What the user typed without these options.

    >>> without(["--seconds", "3", "--data.image_size", "320", "--run=x"], ["seconds", "run"])
    ['--data.image_size', '320']
    """
    parts = split_options(typed)
    return [word for part in parts if part[0].lstrip("-") not in names for word in part]


def search(
    plain: Setting, changes: Sequence[Setting], attempt: Callable[[Setting], Row]
) -> tuple[list[Row], Row]:
    """Try the plain setting, then each change on top of the fastest setting so far.

    Returns:
        All rows, and the fastest.
    """
    best = attempt(plain)
    rows = [best]
    for change in changes:
        row = attempt({**best.setting, **change})
        rows.append(row)
        if row.rate > EVEN * best.rate:
            best = row
    return rows, best


def worker_counts(most: int) -> list[int]:
    """0, 2, 4, 8, ... below `most`.

    >>> worker_counts(6), worker_counts(1), worker_counts(0)
    ([0, 2, 4], [0], [])
    """
    return [n for n in (0, *(2**k for k in range(1, most.bit_length()))) if n < most]


def words(setting: Setting) -> list[str]:
    """For the command line of `fit`."""
    return [word for option, value in setting.items() for word in (f"--{option}", str(value))]


def table(rows: Sequence[Row]) -> str:
    """For the terminal."""
    head = [option.rpartition(".")[2] for option in rows[0].setting]
    lines = [["row", *head, "images/s", "waiting for data", "GPU memory, GiB"]]
    for number, row in enumerate(rows, 1):
        cells, found = ["-"] * 3, row.measured
        if found:
            memory = f"{found['gpu_memory'] / 2**30:.2f}"
            cells = [f"{row.rate:.3g}", f"{found['waiting']:.0%}", memory]
        lines.append([str(number), *map(str, row.setting.values()), *cells])
    return aligned(lines)


def recommendation(rows: Sequence[Row], best: Row, options: Sequence[str]) -> str:
    """The command line of the fastest row, with its reason."""
    command = f"{program()} {shlex.join(['fit', *options, *words(best.setting)])}"
    gain = f"no other is more than {EVEN - 1:.0%} faster"
    if best is not rows[0] and rows[0].rate:
        gain = f"{best.rate / rows[0].rate:.2f} times row 1"
    text = f"recommended: row {rows.index(best) + 1}, {best.rate:.3g} images/s, {gain}:"
    if best.measured["waiting"] > WAITING:
        waiting = f"it waits for data {best.measured['waiting']:.0%} of the time"
        text += f" ({waiting}; try --data.cache ram too)"
    return f"{text}\n{command}"
