"""Pictures of an evolution: fitness over the genes, fitness over the generations, importances.

optuna.visualization is not used: it needs plotly, or sets pyplot's global style, knows no generations or failures, and the data
behind its pictures is private.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from detector.commands.evolve.individual import Individual, best, done
from detector.commands.evolve.space import Gene
from detector.report.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREEN, ORANGE, GREY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#777777"
WIDE, HIGH = 2.3, 1.95  # of a gene's panel, in inches
LETTERS = 24  # of a gene's name that fit above its panel
MOST_COUNTS = 40  # generations whose failures have a number: for more there is no room
WINDOW = 10  # trials over which mean and spread are taken where there are no generations
CHANCE = "a gene that decides nothing stays below, 9 times in 10"
DPI = 110
STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 13,
    "color": RED,
    "markeredgecolor": "white",
    "linestyle": "none",
    "zorder": 5,
}
LOOKS: dict[str, dict[str, Any]] = {
    "pruned": {"marker": "|", "markersize": 6, "color": GREY, "linestyle": "none", "zorder": 3},
    "failed": {"marker": "x", "markersize": 5, "color": RED, "linestyle": "none", "zorder": 4},
}
NAMES = {"pruned": "cut short", "failed": "failed"}


def plot_genes(file: BinaryIO, genes: Sequence[Gene], individuals: Sequence[Individual]) -> None:
    """A panel for each gene, between its bounds: the fitness of all that are done over the gene's value, as PNG. The brighter a
    point the later it was trained, as in Optuna's plot_slice. Those that failed or were cut short stand at the bottom."""
    from matplotlib.ticker import MaxNLocator

    columns = max(math.ceil(math.sqrt(len(genes) * 1.4)), 3)
    lines = math.ceil(len(genes) / columns) or 1
    width, height = 0.9 + WIDE * columns, 1.2 + HIGH * lines
    figure = new_figure(width, height)
    panels = figure.subplots(lines, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.75 / width, right=1 - 0.2 / width, bottom=0.45 / height, top=1 - 0.95 / height, wspace=0.22, hspace=0.6
    )
    scored, winner = done(individuals), best(individuals)
    fitness = np.array([i.fitness for i in scored], float)
    low, high = _limits(fitness, 0.14)
    for axis, gene in zip(panels.flat, genes, strict=False):
        _scale(axis, gene, [i.values[gene.name] for i in individuals if gene.name in i.values])
        axis.set_ylim(low, high)
        points = [(i.values[gene.name], i.fitness, i.number) for i in scored if gene.name in i.values]
        if points:
            values, heights, numbers = zip(*points, strict=True)
            axis.scatter(values, heights, 14, numbers, cmap="viridis", linewidths=0)
        for state, look in LOOKS.items():
            left_out = [i.values[gene.name] for i in individuals if i.state == state and gene.name in i.values]
            axis.plot(left_out, [0.03] * len(left_out), transform=axis.get_xaxis_transform(), clip_on=False, **look)
        name = gene.name if len(gene.name) <= LETTERS else f"…{gene.name[1 - LETTERS :]}"
        if winner and gene.name in winner.values:
            axis.plot(winner.values[gene.name], winner.fitness, clip_on=False, **STAR)
            name += f"\n{winner.values[gene.name]:.5g}"
        axis.set_title(name, fontsize=9, pad=3, linespacing=1.1)
        axis.yaxis.set_major_locator(MaxNLocator(4))
        axis.tick_params(labelsize=7.5, length=2.5)
        axis.grid(alpha=0.25)
    for k, axis in enumerate(panels.flat):
        axis.set_visible(k < len(genes))
        if k % columns:
            axis.tick_params(labelleft=False)
    figure.text(0.08 / width, 0.5, "fitness", rotation="vertical", va="center", fontsize=10)
    title = "Fitness over each gene's value; above: the best one's value" if winner else "No individual is done yet"
    figure.text(0.2 / width, 1 - 0.14 / height, title, va="top", fontsize=11)
    _legend(figure, individuals, winner, (0.12 / width, 1 - 0.36 / height))
    figure.savefig(file, dpi=DPI, format="png")


def _legend(figure: "Figure", individuals: Sequence[Individual], winner: Individual | None, place: tuple[float, float]) -> None:
    """One for all panels: only what is there."""
    from matplotlib.lines import Line2D

    marks: list[tuple[str, dict[str, Any]]] = []
    if winner:
        dot = {"marker": "o", "markersize": 5, "linestyle": "none"}
        marks = [("first trials", {**dot, "color": "#440154"}), ("last", {**dot, "color": "#FDE725"}), ("best", STAR)]
    marks += [(NAMES[state], look) for state, look in LOOKS.items() if any(i.state == state for i in individuals)]
    handles = [Line2D([], [], label=name, **look) for name, look in marks]
    if handles:
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=place, ncols=len(handles), frameon=False, fontsize=9,
            handletextpad=0.2, columnspacing=1.2, borderpad=0, borderaxespad=0.3,
        )  # fmt: skip


def _limits(fitness: np.ndarray, below: float) -> tuple[float, float]:
    """Of the axis: all of it, with so much of its length below for those that have none."""
    if not len(fitness):
        return 0.0, 1.0
    low, high = float(fitness.min()), float(fitness.max())
    room = (high - low) or abs(high) * 0.1 or 0.1
    return low - below * room, high + 0.1 * room


def _scale(axis: "Axes", gene: Gene, values: Sequence[float]) -> None:
    """The gene's bounds, further where a start value lies outside of them."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = min([gene.low, *values]), max([gene.high, *values])
    if gene.log and low > 0:
        room = (high / low) ** 0.04 if high > low else 1.1
        axis.set_xscale("log")
        axis.set_xlim(low / room, high * room)
        axis.xaxis.set_major_locator(LogLocator(numticks=5))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        room = (high - low) * 0.04 or abs(high) * 0.1 or 0.1
        axis.set_xlim(low - room, high + room)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=gene.whole, steps=[1, 2, 2.5, 5, 10]))


def plot_fitness(file: BinaryIO, individuals: Sequence[Individual], generations: int) -> None:
    """Best and mean fitness by generation with the middle half of the individuals, as PNG; failures stand at the bottom.
    Without generations (0) by trial number: mean and middle half are those of the last ten trials."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8, 4.8)
    figure.set_layout_engine("constrained")
    axis = figure.subplots()
    scored = done(individuals)
    fitness = np.array([i.fitness for i in scored], float)
    at = np.array([i.generation if generations else i.number for i in scored], int)
    if len(scored):
        x = np.unique(at)
        groups = [fitness[at == k] if generations else fitness[max(n - WINDOW + 1, 0) : n + 1] for n, k in enumerate(x)]
        quarters = np.array([np.quantile(g, (0.25, 0.75)) for g in groups])
        so_far = np.maximum.accumulate([fitness[at <= k].max() for k in x])
        over = "" if generations else f" of {WINDOW} trials"
        few: dict[str, Any] = {"marker": "o", "markersize": 4} if len(x) <= 60 else {}
        axis.scatter(at, fitness, 12, GREY, alpha=0.5, linewidths=0, label="individual")
        axis.fill_between(x, quarters[:, 0], quarters[:, 1], color=BLUE, alpha=0.18, linewidth=0, label=f"middle half{over}")
        axis.plot(x, [g.mean() for g in groups], color=BLUE, label=f"mean{over}", **(few if generations else {}))
        if generations:
            axis.plot(x, [g.max() for g in groups], color=ORANGE, marker="^", markersize=5, label="best of the generation")
        axis.step(x, so_far, where="post", color=GREEN, linewidth=2, label="best so far")
        axis.plot(at[fitness.argmax()], fitness.max(), label="best", **STAR)
    axis.set_ylim(*_limits(fitness, 0.24))
    for state, height in (("failed", 0.025), ("pruned", 0.105)):
        left_out = [i.generation if generations else i.number for i in individuals if i.state == state]
        if left_out:
            places, counts = np.unique(left_out, return_counts=True)
            across = axis.get_xaxis_transform()
            axis.plot(places, [height] * len(places), transform=across, label=NAMES[state], **LOOKS[state])
            for place, count in zip(places, counts, strict=True):
                if count > 1 and len(places) <= MOST_COUNTS:
                    text = {"fontsize": 6.5, "ha": "center", "color": LOOKS[state]["color"]}
                    axis.text(place, height + 0.022, str(count), transform=across, **text)
    last = max([i.generation if generations else i.number for i in individuals], default=0)
    axis.set_xlim(-0.03 * last - 0.5, 1.03 * last + 0.5)
    axis.set_xlabel("generation" if generations else "trial")
    axis.set_ylabel("fitness")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.grid(alpha=0.3)
    axis.set_title("" if len(scored) else "No individual is done yet", fontsize=11)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8.5, frameon=False)
    figure.savefig(file, dpi=DPI, format="png")


def plot_importances(file: BinaryIO, content: dict[str, Any]) -> None:
    """Bars of what `importances` found, the most important gene above, and how far chance alone gets, as PNG."""
    names, shares = list(content["importances"]), list(content["importances"].values())
    figure = new_figure(7, 1.4 + 0.24 * len(names))
    figure.set_layout_engine("constrained")
    axis = figure.subplots()
    axis.barh(names, shares, color=BLUE, height=0.7, zorder=2)
    axis.axvline(content["chance"], color=RED, linestyle="--", linewidth=1.2, zorder=3, label=CHANCE)
    figure.legend(loc="outside lower right", fontsize=8, frameon=False)
    for k, share in enumerate(shares):
        text = f"{share:.0%}" if share >= 0.01 else "<1%"
        axis.text(1.05, k, text, transform=axis.get_yaxis_transform(), ha="right", va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlim(0, max(*shares, content["chance"]) * 1.02)
    axis.xaxis.set_major_formatter("{x:.0%}")
    axis.tick_params(labelsize=8.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(f"share of what tells the better half of {content['individuals']} individuals from all", fontsize=9)
    axis.set_title(f"Importance of each gene ({content['method']})", fontsize=10)
    figure.savefig(file, dpi=DPI, format="png")
