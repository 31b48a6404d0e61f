"""The command `compare`: runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boltbox.detector.checkpoint.runs import new_run
from boltbox.detector.report.curves import add_lines, loss_names, loss_title, points
from boltbox.detector.report.figure import new_figure
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import document
from boltbox.detector.report.panel import COLOURS, HATCHES
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.configuration import differences
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

METRICS = ("fitness", "mAP50-95", "mAP50", "P", "R", "coco/AP")
PANELS = {  # then the losses
    "mAP50-95": "val/mAP50-95",
    "mAP50": "val/mAP50",
    "Precision": "val/P",
    "Recall": "val/R",
}
LEARNING_RATE = {"Learning rate of weights": "lr/weight"}


def compare(runs: list[str], run: str | None = None) -> None:
    """What differs between runs: options first, then metrics, then curves; on the screen, as
    compare.html and compare.png.

    Args:
        runs: Folders of fit, validate or test, as runs/fit-1 runs/fit-2.
        run: Folder to write into; default: runs/compare-NUMBER.
    """
    if len({Path(r).resolve() for r in runs}) < 2:
        raise InputError("compare needs the folders of two runs at least, as runs/fit-1 runs/fit-2")
    comparison = Comparison([RunFiles.read(path) for path in dict.fromkeys(map(Path, runs))])
    rank_zero_print(comparison.text())
    folder = Path(run) if run else new_run("compare")
    comparison.draw(folder / "compare.png")
    content = comparison.page(folder / "compare.png")
    write_atomically(folder / "compare.html", lambda file: file.write(content))
    rank_zero_print(f"\npage: {folder / 'compare.html'}, compare.png")


class Comparison:
    """Runs, the best by fitness first."""

    def __init__(self, runs: Sequence[RunFiles]) -> None:
        self.runs = sorted(runs, key=lambda r: -float(r.metrics.get("fitness", -1)))
        short = [r.path.resolve().name for r in self.runs]
        self.names = [
            name if short.count(name) == 1 else str(r.path)
            for name, r in zip(short, self.runs, strict=True)
        ]

    def options(self) -> list[list[str]]:
        """Header and a row an option that is not the same everywhere."""
        rows = differences([r.config for r in self.runs])
        return [
            ["option", *self.names],
            *([name, *map(str, values)] for name, values in rows.items()),
        ]

    def metrics(self) -> list[list[str]]:
        """Header and a row a run; an asterisk marks the best of a column."""
        table = [["run", "command", "best epoch", "images", *METRICS, "training"]]
        best = {
            name: max(-1.0 if r.metrics.get(name) is None else r.metrics[name] for r in self.runs)
            for name in METRICS
        }
        for name, r in zip(self.names, self.runs, strict=True):
            m = r.metrics
            seconds = sum(pair[1] for pair in points(r.epochs, "epoch", "seconds"))
            row = [
                name,
                str(m.get("command", "-")),
                str(m["epoch"] + 1) if "epoch" in m else "-",
                str(m.get("images", "-")),
            ]
            row += [
                f"{m[n]:.4f}{'*' if m[n] == best[n] else ' '}" if m.get(n) is not None else "- "
                for n in METRICS
            ]
            table.append([*row, f"{seconds:.0f} s" if seconds else "-"])
        return table

    def warnings(self) -> list[str]:
        """What makes the metrics hard to compare."""
        seen = {(r.metrics.get("images"), r.metrics.get("objects")) for r in self.runs if r.metrics}
        splits = {
            (str(r.option("data.dataset")), r.metrics.get("split")) for r in self.runs if r.metrics
        }
        if len(seen) > 1 or len(splits) > 1:
            return [
                "the runs were not evaluated on the same images, so their figures say little about"
                " each other"
            ]
        return []

    def text(self) -> str:
        """For the terminal."""
        options = self.options()
        parts = [
            _columns(options) if len(options) > 1 else "the options are the same",
            "",
            _columns(self.metrics()),
        ]
        return "\n".join([*parts, *(f"warning: {line}" for line in self.warnings())])

    def page(self, picture: Path) -> bytes:
        """As an HTML file."""
        title = f"Comparison: {', '.join(self.names)}"
        tables = {"options": self.options(), "metrics": self.metrics(), "warnings": self.warnings()}
        return document("report/templates/compare.html", title=title, picture=picture, **tables)

    def draw(self, path: Path) -> None:
        """Bars of the metrics, and curves over the epochs of those runs that have any, to a PNG
        file."""
        losses = loss_names([row for r in self.runs for row in r.epochs])
        panels = {
            **PANELS,
            **{f"{loss_title(name)}, validation": f"val/{name}" for name in losses},
            **LEARNING_RATE,
        }
        curves = {
            title: [points(r.epochs, "epoch", column, first=1) for r in self.runs]
            for title, column in panels.items()
        }
        curves = {title: lines for title, lines in curves.items() if any(lines)}
        rows = 1 + -(-len(curves) // 3)
        high = 1.2 + 0.3 * len(self.runs)
        figure = new_figure(13, high + 3.4 * (rows - 1) + 0.6, layout="constrained")
        grid = figure.add_gridspec(rows, 3, height_ratios=[high, *[3.4] * (rows - 1)])
        for k, name in enumerate(("mAP50-95", "mAP50", "fitness")):
            self._bars(figure.add_subplot(grid[0, k]), name)
        for k, (title, lines) in enumerate(curves.items()):
            self._lines(figure.add_subplot(grid[1 + k // 3, k % 3]), title, lines)
        write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=100))

    def _bars(self, axis: Any, name: str) -> None:
        values = [float(r.metrics.get(name) or 0) for r in self.runs]
        for k, value in enumerate(values):
            axis.barh(
                k,
                value,
                color=COLOURS[k % len(COLOURS)],
                hatch=HATCHES[k % len(HATCHES)],
                edgecolor="white",
            )
            axis.text(value, k, f" {value:.3f}", va="center", fontsize=9)
        axis.set_yticks(
            range(len(values)),
            [n if len(n) <= 20 else "…" + n[-19:] for n in self.names],
            fontsize=9,
        )
        axis.invert_yaxis()
        axis.margins(x=0.2)
        axis.set_title(name, fontsize=11)

    def _lines(self, axis: Any, title: str, lines: list[list[tuple[float, float]]]) -> None:
        add_lines(axis, "epoch", dict(zip(self.names, lines, strict=True)), marks=True)
        axis.set_title(title, fontsize=11)
        axis.grid(alpha=0.3)


def _columns(table: Sequence[Sequence[str]]) -> str:
    """Rows of equal length as lines, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.ljust(w) if k == 0 else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
