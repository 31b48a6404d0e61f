"""Which settings are fastest: one thing after the other is changed, and kept where it gains."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.report.table import aligned

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # most exact first
EVEN = 1.05  # a setting is faster only by more than 5 %: runs differ by as much
WAITING = 0.2  # from this share on, the loader is what to look at
Setting = Mapping[str, Any]  # value by option of `fit`


class Trial(NamedTuple):
    """What came of a training. measured: the Stopwatch's, empty after an error · error: in one
    line, empty if all went well."""

    measured: dict[str, Any]
    error: str

    @property
    def rate(self) -> float:
        """Images a second; 0 after an error."""
        return self.measured["images"] / self.measured["seconds"] if self.measured else 0.0


def attempt(line: Sequence[str], report: Path, deadline: float) -> Trial:
    """Run a command of ours that leaves the Stopwatch's `report`, and all that it starts. After
    `deadline` seconds it is given up."""
    process = TrainingProcess(line, report.with_suffix(".log"))
    code = process.finish(deadline)
    if code is None:
        return Trial({}, f"not done within {deadline:g} s")
    measured = json.loads(report.read_text()) if code == 0 and report.is_file() else {}
    return Trial(measured, "") if measured.get("steps") else Trial({}, process.reason(code))


class Row(NamedTuple):
    """A setting, and what came of a training with it."""

    setting: Setting
    trial: Trial

    def __str__(self) -> str:
        text = ", ".join(f"{option} {value}" for option, value in self.setting.items())
        if self.trial.error:
            return f"{text}: {self.trial.error}"
        measured = self.trial.measured
        return f"{text}: {self.trial.rate:.3g} images/s, {measured['waiting']:.0%} waiting for data"


def search(
    plain: Setting, changes: Sequence[Setting], attempt: Callable[[Setting], Trial]
) -> tuple[list[Row], Row]:
    """Try the plain setting, then each change on top of the fastest setting so far.

    Returns:
        All rows, and the fastest.
    """
    best = Row(plain, attempt(plain))
    rows = [best]
    for change in changes:
        setting = {**best.setting, **change}
        row = Row(setting, attempt(setting))
        rows.append(row)
        if row.trial.rate > EVEN * best.trial.rate:
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
        cells, found = ["-"] * 3, row.trial.measured
        if found:
            memory = f"{found['gpu_memory'] / 2**30:.2f}"
            cells = [f"{row.trial.rate:.3g}", f"{found['waiting']:.0%}", memory]
        lines.append([str(number), *map(str, row.setting.values()), *cells])
    return aligned(lines)


def recommendation(rows: Sequence[Row], best: Row, options: Sequence[str]) -> str:
    """The command line of the fastest row, with its reason."""
    command = shlex.join(["python", "cli.py", "fit", *options, *words(best.setting)])
    gain = f"no other is more than {EVEN - 1:.0%} faster"
    if best is not rows[0] and rows[0].trial.rate:
        gain = f"{best.trial.rate / rows[0].trial.rate:.2f} times row 1"
    text = f"recommended: row {rows.index(best) + 1}, {best.trial.rate:.3g} images/s, {gain}:"
    if best.trial.measured["waiting"] > WAITING:
        waiting = f"it waits for data {best.trial.measured['waiting']:.0%} of the time"
        text += f" ({waiting}; try --data.cache ram too)"
    return f"{text}\n{command}"
