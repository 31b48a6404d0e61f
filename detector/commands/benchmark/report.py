"""What a benchmark found: table and recommendation."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from boltbox.detector.commands.benchmark.setting import PRECISIONS, Setting
from boltbox.detector.commands.benchmark.trial import Trial
from boltbox.detector.report.table import aligned

EVEN = 0.95  # rates within 5 % are one and the same: runs differ by as much
WAITING = 0.2  # from this share on, the loader is what to look at


class Row(NamedTuple):
    """A setting, the options of `fit` that train with it, and what came of trying."""

    setting: Setting
    options: list[str]
    trial: Trial

    @property
    def command(self) -> str:
        return shlex.join(["python", "cli.py", "fit", *self.options])

    def summary(self) -> str:
        """Without the setting, in one line."""
        if self.trial.error:
            return self.trial.error
        return (
            f"{self.trial.rate:.3g} images/s, {self.trial.measured['waiting']:.0%} waiting for data"
        )


def recommended(rows: Sequence[Row]) -> Row | None:
    """Among the rows that are as fast as the fastest: fewest devices, then most exact, then without
    compilation."""
    best = max((row.trial.rate for row in rows), default=0.0)
    near = [row for row in rows if row.trial.rate >= EVEN * best > 0]

    def cost(row: Row) -> tuple[int, int, bool]:
        return row.setting.devices, PRECISIONS.index(row.setting.precision), row.setting.compiled

    return min(near, key=cost, default=None)


def recommendation(rows: Sequence[Row]) -> str:
    """One sentence with its reason."""
    row, plain = recommended(rows), rows[0]
    if row is None:
        return "nothing to recommend: no row could be measured"
    text = f"recommended: {row.setting}, with {row.trial.rate:.3g} images/s"
    if row is plain:
        text += f", as no other row is more than {1 - EVEN:.0%} faster"
    elif not plain.trial.error:
        text += f", {row.trial.rate / plain.trial.rate:.2f} times those of {plain.setting}"
    if row.trial.measured["waiting"] > WAITING:
        text += (
            f"; it waits for data {row.trial.measured['waiting']:.0%} of the time, so try"
            " --data.cache ram too"
        )
    return text


def table(rows: Sequence[Row]) -> str:
    """For the terminal: the table, what failed, the command lines."""
    head = ["row", "precision", "devices", "workers", "compiled", "cache"]
    cells = [[*head, "images/s", "memory of a GPU, GiB", "waiting for data", "steps"]]
    for number, row in enumerate(rows, 1):
        s, found = row.setting, row.trial.measured
        line = [
            str(number),
            s.precision,
            f"{s.devices} ({s.strategy})" if s.devices > 1 else "1",
            str(s.workers),
        ]
        line += ["yes" if s.compiled else "no", s.cache]
        if found:
            memory = f"{found['gpu_memory'] / 2**30:.2f}" if found["gpu_memory"] else "-"
            line += [
                f"{row.trial.rate:.3g}",
                memory,
                f"{found['waiting']:.0%}",
                str(found["steps"]),
            ]
        cells.append(line + ["-"] * (len(cells[0]) - len(line)))
    failures = [
        f"row {number}: {row.trial.error}" for number, row in enumerate(rows, 1) if row.trial.error
    ]
    return "\n".join(
        [
            aligned(cells),
            *failures,
            "",
            *(f"row {k}: {row.command}" for k, row in enumerate(rows, 1)),
        ]
    )


def content(machine: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Everything as plain types."""
    row = recommended(rows)
    entries = [
        {
            **asdict(row.setting),
            "images_per_second": row.trial.rate,
            **row.trial.measured,
            "error": row.trial.error,
            "command": row.command,
        }
        for row in rows
    ]
    place = None if row is None else rows.index(row)
    return {
        "host": machine,
        "rows": entries,
        "recommended": place,
        "recommendation": recommendation(rows),
    }
