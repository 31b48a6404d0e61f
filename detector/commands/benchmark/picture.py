"""A picture of trials side by side."""

from collections.abc import Sequence
from typing import BinaryIO

from detector.commands.benchmark.trial import Trial
from detector.report.figure import new_figure

USUAL, CHOSEN = "#56B4E9", "#0072B2"


def draw(file: BinaryIO, names: Sequence[str], trials: Sequence[Trial], chosen: int | None) -> None:
    """Three bars for each trial, the first at the top: images a second, share of time waiting for data, memory. As PNG.

    Args:
        chosen: Number of the trial whose bars are darker.
    """
    figure = new_figure(12, 1.6 + 0.34 * len(trials), layout="constrained")
    on_gpu = any(t.figures.get("gpu_memory") for t in trials)
    panels = [
        ("images/s", [t.rate for t in trials], "{:.3g}"),
        ("waiting for data, %", [100 * t.figures.get("waiting", 0) for t in trials], "{:.0f}"),
        (
            "memory of a GPU, GiB" if on_gpu else "memory of all processes, GiB",
            [(t.figures.get("gpu_memory", 0) if on_gpu else t.memory) / 2**30 for t in trials],
            "{:.2f}",
        ),
    ]
    rows = range(len(trials))
    colours = [CHOSEN if k == chosen else USUAL for k in rows]
    axes = figure.subplots(1, len(panels), sharey=True, width_ratios=(2, 1, 1))
    for axis, (title, values, form) in zip(axes, panels, strict=True):
        bars = axis.barh(rows, [0 if t.error else v for t, v in zip(trials, values, strict=True)], color=colours)
        labels = ["" if t.error else form.format(v) for t, v in zip(trials, values, strict=True)]
        axis.bar_label(bars, labels, padding=3, fontsize=9)
        axis.set_title(title, fontsize=11)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.margins(x=0.25)
    for k, trial in enumerate(trials):
        if trial.error:
            axes[0].text(0, k, f" {trial.error[:60]}", va="center", fontsize=8, color="#D55E00")
    axes[0].set_yticks(rows, names)
    axes[0].invert_yaxis()
    figure.savefig(file, format="png", dpi=110)
