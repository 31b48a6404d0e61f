"""What a benchmark found: table, recommendation, page, picture."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detector.commands.benchmark.picture import Panel, draw_bars
from detector.commands.benchmark.setting import PRECISIONS, Setting
from detector.commands.benchmark.table import aligned, markdown
from detector.commands.benchmark.trial import Trial
from detector.system.atomic_file import write_atomically
from detector.system.host import described

EVEN = 0.95  # rates within 5 % are one and the same: runs differ by as much
WAITING = 0.2  # from this share on, the loader is what to look at


@dataclass(frozen=True)
class Row:
    """A setting, the options of `fit` that train with it, and what came of trying, once or several times."""

    setting: Setting
    options: list[str]
    trials: list[Trial]

    @property
    def trial(self) -> Trial:
        """The fastest."""
        return max(self.trials, key=lambda t: t.rate)

    @property
    def command(self) -> str:
        return shlex.join(["python", "cli.py", "fit", *self.options])

    def summary(self) -> str:
        """Without the setting, in one line."""
        if self.trial.error:
            return self.trial.error
        memory = f"{self.trial.memory / 2**30:.1f} GiB"
        gpu = self.trial.measured["gpu_memory"]
        return (
            f"{self.trial.rate:.3g} images/s, {memory}{f' and {gpu / 2**30:.1f} GiB on the GPU' if gpu else ''}, "
            f"{self.trial.measured['waiting']:.0%} waiting for data"
        )


@dataclass(frozen=True)
class Report:
    """All rows, in the order they were measured (the first is the plain one), and the machine."""

    host: dict[str, Any]
    rows: list[Row]

    @property
    def chosen(self) -> Row | None:
        """Among the rows that are as fast as the fastest: fewest devices, then most exact, then without compilation, then least
        memory."""
        best = max((row.trial.rate for row in self.rows), default=0.0)
        near = [row for row in self.rows if row.trial.rate >= EVEN * best > 0]

        def cost(row: Row) -> tuple[int, int, bool, int]:
            s = row.setting
            return s.devices, PRECISIONS.index(s.precision), s.compiled, row.trial.memory

        return min(near, key=cost, default=None)

    def recommendation(self) -> str:
        """One sentence with its reason."""
        row, plain = self.chosen, self.rows[0]
        if row is None:
            return "nothing to recommend: no row could be measured"
        text = f"recommended: {row.setting}, with {row.trial.rate:.3g} images/s"
        if row is plain:
            text += f", as no other row is more than {1 - EVEN:.0%} faster"
        elif plain.trial.error:
            text += f", the fastest that is left, as {plain.setting} failed"
        else:
            text += f", {row.trial.rate / plain.trial.rate:.2f} times those of {plain.setting}"
            if row.trial.rate < max(r.trial.rate for r in self.rows):
                text += f" and within {1 - EVEN:.0%} of the fastest row, which costs more devices, digits or memory"
        if row.trial.measured["waiting"] > WAITING:
            text += f"; it waits for data {row.trial.measured['waiting']:.0%} of the time, so try --data.cache ram too"
        return text

    def cells(self) -> list[list[str]]:
        """Header and rows of the table."""
        on_gpu = any(row.trial.measured.get("gpu_memory") for row in self.rows)
        head = ["row", "precision", "devices", "workers", "compiled", "cache", "images/s", "memory, GiB"]
        lines = [[*head, *(["of a GPU, GiB"] if on_gpu else []), "waiting for data", "steps"]]
        for number, row in enumerate(self.rows, 1):
            s, t = row.setting, row.trial
            line = [str(number), s.precision, f"{s.devices} ({s.strategy})" if s.devices > 1 else "1", str(s.workers)]
            line += ["yes" if s.compiled else "no", s.cache]
            if t.error:
                line += ["-"] * (len(lines[0]) - len(line))
            else:
                line += [f"{t.rate:.3g}", f"{t.memory / 2**30:.2f}"]
                line += [f"{t.measured['gpu_memory'] / 2**30:.2f}"] if on_gpu else []
                line += [f"{t.measured['waiting']:.0%}", str(t.measured["steps"])]
            lines.append(line)
        return lines

    def failures(self) -> list[str]:
        return [f"row {number}: {row.trial.error}" for number, row in enumerate(self.rows, 1) if row.trial.error]

    def table(self) -> str:
        """For the terminal: the table, what failed, the command lines, the recommendation."""
        commands = [f"row {number}: {row.command}" for number, row in enumerate(self.rows, 1)]
        return "\n".join([*aligned(self.cells()), *self.failures(), "", *commands, "", self.recommendation()])

    def page(self, picture: str) -> str:
        """As Markdown."""
        commands = [f"    {row.command}  # row {number}" for number, row in enumerate(self.rows, 1)]
        failures = [f"- {failure}" for failure in self.failures()]
        advice = self.recommendation()
        parts = [
            [f"Training steps on {described(self.host)}{self._rounds()}:"],
            markdown(self.cells()),
            failures,
            [f"{advice[0].upper()}{advice[1:]}."],
            [f"![images/s, waiting for data and memory of each row]({picture})"],
            ["The command lines:"],
            commands,
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def _rounds(self) -> str:
        most = max(len(row.trials) for row in self.rows)
        return f"; the fastest of {most} trials" if most > 1 else ""

    def content(self) -> dict[str, Any]:
        """Everything as plain types."""
        rows = [
            {
                **asdict(row.setting),
                "images_per_second": row.trial.rate,
                "memory": row.trial.memory,
                **row.trial.measured,
                "trials": [t.rate for t in row.trials],
                "error": row.trial.error,
                "command": row.command,
            }
            for row in self.rows
        ]
        chosen = self.rows.index(self.chosen) if self.chosen else None
        return {"host": self.host, "rows": rows, "recommended": chosen, "recommendation": self.recommendation()}

    def draw(self, path: Path) -> None:
        """Bars of each row to an image file."""
        names = [f"{number}: {row.setting}" for number, row in enumerate(self.rows, 1)]
        trials = [row.trial for row in self.rows]
        on_gpu = any(t.measured.get("gpu_memory") for t in trials)
        memory = [None if t.error else (t.measured["gpu_memory"] if on_gpu else t.memory) / 2**30 for t in trials]
        panels = [
            Panel("images/s", [None if t.error else t.rate for t in trials], "{:.3g}"),
            Panel("waiting for data, %", [None if t.error else 100 * t.measured["waiting"] for t in trials], "{:.0f}"),
            Panel(f"memory of {'a GPU' if on_gpu else 'all processes'}, GiB", memory, "{:.2f}"),
        ]
        chosen = self.rows.index(self.chosen) if self.chosen else None
        write_atomically(path, lambda file: draw_bars(file, names, panels, chosen, [t.error for t in trials]))
