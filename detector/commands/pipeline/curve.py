"""The figures of the pipeline study: a table, and step time against the size of the micro-batches."""

from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from detector.report.figure import new_figure
from detector.system.atomic_file import write_atomically

NAMES = {"one device": "one device", "gpipe": "two halves, GPipe", "1f1b": "two halves, 1F1B"}
LOOKS = {"one device": ("#555555", "s"), "gpipe": ("#0072B2", "o"), "1f1b": ("#D55E00", "^")}


class Timing(NamedTuple):
    """Seconds of the steps that were timed; `how` is one device, gpipe or 1f1b, with so many micro-batches a step."""

    how: str
    micro_batches: int
    seconds: list[float]


def table(timings: list[Timing], batch: int) -> str:
    """A row for each way, in Markdown."""
    whole = median(timings[0].seconds)
    lines = [
        "| | micro-batches | images each | ms a step | quartiles | fastest | images/s | one device = 1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for t in timings:
        low, middle, high = np.quantile(t.seconds, (0.25, 0.5, 0.75))
        name = "two halves" if t.how == "gpipe" and t.micro_batches == 1 else NAMES[t.how]
        milliseconds = f"{middle * 1e3:.0f} | {low * 1e3:.0f} to {high * 1e3:.0f} | {min(t.seconds) * 1e3:.0f}"
        speed = f"{batch / middle:.1f} | {whole / middle:.2f}"
        lines.append(f"| {name} | {t.micro_batches} | {batch // t.micro_batches} | {milliseconds} | {speed} |")
    return "\n".join(lines)


def plot(timings: list[Timing], batch: int, title: str, path: Path) -> None:
    """Median and quartiles of the step time against images a micro-batch, to a PNG file; hollow marks are the fastest steps.

    Dashed: what halves of equal length with free transfers would take: the time of one device with the same micro-batches
    times (m + 1) / 2m, as each half waits for one of m micro-batches at the start or the end.
    """
    figure = new_figure(8, 5.5, layout="constrained")
    axis = figure.subplots()
    for how, (colour, mark) in LOOKS.items():
        points = [(t.micro_batches, np.quantile(t.seconds, (0.25, 0.5, 0.75)) * 1e3) for t in timings if t.how == how]
        if points:
            counts, quartiles = zip(*points, strict=True)
            low, middle, high = np.array(quartiles).T
            errors = (middle - low, high - middle)
            axis.errorbar(counts, middle, errors, color=colour, marker=mark, capsize=3, label=NAMES[how])
            fastest = [min(t.seconds) * 1e3 for t in timings if t.how == how]
            axis.plot(counts, fastest, color=colour, marker=mark, markerfacecolor="none", linestyle="none")
    alone = {t.micro_batches: median(t.seconds) * 1e3 for t in timings if t.how == "one device"}
    ideal = [ms * (m + 1) / (2 * m) for m, ms in alone.items()]
    axis.plot(list(alone), ideal, color="#999999", linestyle="--", label="equal halves, free transfers")
    axis.axhline(alone[1], color="#555555", linestyle=":", label="one device, whole batch")
    axis.axhline(
        median(next(t.seconds for t in timings if t.how == "gpipe")) * 1e3,
        color="#0072B2", linestyle=":", label="two halves, no micro-batches",
    )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(alone), [f"{m}\n{batch // m}" for m in alone])
    axis.minorticks_off()
    axis.set_xlabel("micro-batches a step (above), images in each (below)")
    axis.set_ylabel("ms a step")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.set_title(title, fontsize=9)
    axis.legend()
    write_atomically(path, lambda file: figure.savefig(file, dpi=110))
