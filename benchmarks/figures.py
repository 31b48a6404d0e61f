"""The figures of the README and the pages, drawn from committed measurements.

    python -m benchmarks.figures

writes docs/pictures/NAME-light.svg and NAME-dark.svg. It takes seconds and trains nothing.
`tests/house/test_figures.py` draws them again and compares the curves and bars.
"""

import csv
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from boltbox.detector.system.csv_table import read_table

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs/pictures"
SETS = {"BCCD": "Blood cells", "playing_cards": "Playing cards", "aquarium": "Aquarium"}
TRAINED_ON = {"BCCD": 205, "playing_cards": 296, "aquarium": 400}  # images of the whole set
RECIPES = {"yolov5": "C0", "default": "C1"}  # colours of the theme
STYLE = {
    "font.size": 17,
    "svg.hashsalt": "boltbox",  # the same ids each time
    "path.simplify": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "grid.linewidth": 1,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
# text, grid, and the two recipes, on a transparent ground
THEMES = {
    "light": ("#1f2328", "#d1d9e0", "#6e7781", "#c2410c"),
    "dark": ("#e6edf3", "#3d444d", "#9198a1", "#fb923c"),
}
# a number beside what it measures, moved by some points
NOTE: dict[str, Any] = {"textcoords": "offset points", "weight": "bold"}


def style(text: str, grid: str, *recipes: str) -> dict[str, Any]:
    """Settings of matplotlib, from the colours of a theme."""
    colours = {
        "axes.edgecolor": grid,
        "grid.color": grid,
        "axes.prop_cycle": mpl.cycler(color=recipes),
    }
    for name in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color"):
        colours[name] = text
    return STYLE | colours


def measured(name: str, recipe: str, column: str) -> np.ndarray:
    """(seeds, n) AP in hundredths of a column of recipes.csv: the trainings from yolov5n.pt (30
    epochs, seeds 0 to 2) on a dataset."""
    expected = ("weights", recipe, name)
    found = []
    for row in read_table(HERE / "recipes.csv"):
        if (row["study"], row["recipe"], row["data"]) == expected:
            found.append(row[column].split())
    return 100 * np.array(found, float)


def curves() -> Figure:
    """AP on val against the epoch: mean of the seeds, and their range."""
    figure, axes = panels("COCO AP, val")
    for axis, name in zip(axes, SETS, strict=True):
        for recipe, colour in RECIPES.items():
            ap = measured(name, recipe, "AP")
            epochs = 1 + np.arange(ap.shape[1])
            mean = ap.mean(0)
            axis.plot(epochs, mean, colour, linewidth=3, gid=f"{name}-{recipe}")
            axis.fill_between(epochs, ap.min(0), ap.max(0), color=colour, alpha=0.25, linewidth=0)
            axis.annotate(f"{mean[-1]:.0f}", (epochs[-1], mean[-1]), (5, -6), color=colour, **NOTE)
        axis.set(xlabel="epoch", xlim=(0, 30), xticks=(0, 10, 20, 30))
    return figure


def few_images() -> Figure:
    """AP after 30 epochs with 50, 100 and all training images: mean of the seeds, and their
    range."""
    figure, axes = panels("COCO AP")
    note = NOTE | {"ha": "center", "size": 14}
    for axis, name in zip(axes, SETS, strict=True):
        for place, subset in enumerate((f"{name}-50", f"{name}-100", name)):
            for x, (recipe, colour) in zip(
                (place - 0.2, place + 0.2), RECIPES.items(), strict=True
            ):
                scores = measured(subset, recipe, "score")
                mean = scores.mean()
                ends = (scores.min(), scores.max())
                axis.bar(x, mean, 0.38, color=colour, gid=f"{subset}-{recipe}")
                axis.plot((x, x), ends, mpl.rcParams["text.color"], linewidth=1.5)
                axis.annotate(f"{mean:.0f}", (x, ends[1]), (0, 4), color=colour, **note)
        axis.set(xlabel="training images")
        axis.set_xticks(range(3), ["50", "100", str(TRAINED_ON[name])])
    return figure


def panels(quantity: str) -> tuple[Figure, list[Axes]]:
    """Three panels side by side, one per dataset, which show this quantity."""
    figure = Figure((12, 4.6))
    axes = []
    for left, title in zip((0.075, 0.395, 0.715), SETS.values(), strict=True):
        axis = figure.add_axes((left, 0.17, 0.25, 0.62), title=title, ylim=(0, 100))
        axis.grid(axis="y")
        axes.append(axis)
    axes[0].set_ylabel(quantity)
    legend(figure, "YOLOv5 recipe")
    return figure, axes


def speed() -> Figure:
    """Seconds of whole processes beside YOLOv5, each pair relative to YOLOv5."""
    seconds = {}
    lines = (HERE / "speed_beside_yolov5.csv").read_text().splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        runs = [float(row[name]) for name in ("seconds 1", "seconds 2") if row[name]]
        seconds[row["work"], row["conditions"], row["tool"]] = np.mean(runs)
    figure = Figure((12, 4.6))
    axis = figure.add_axes((0.37, 0.04, 0.6, 0.84))
    labels: list[str] = []
    for (work, conditions, tool), theirs in seconds.items():
        ours = seconds.get((work, conditions, "Boltbox"))
        if tool != "YOLOv5" or ours is None:
            continue
        place = len(labels)
        labels.append(fill(f"{work}: {conditions}", 26))
        for y, value, recipe in ((place - 0.2, theirs, "yolov5"), (place + 0.2, ours, "default")):
            colour = RECIPES[recipe]
            length = value / theirs
            axis.barh(y, length, 0.38, color=colour, gid=f"{work}-{place}-{recipe}")
            axis.annotate(f"{value:.3g} s", (length, y), (6, 0), color=colour, va="center", **NOTE)
    axis.set_yticks(range(len(labels)), labels)
    axis.set(xlim=(0, 1.12), xticks=())
    axis.invert_yaxis()
    axis.spines["bottom"].set_visible(False)
    legend(figure, "YOLOv5")
    return figure


def legend(figure: Figure, theirs: str) -> None:
    """Above the panels, in the colours of the recipes."""
    figure.text(0.075, 0.94, f"■ {theirs}", color="C0", weight="bold", va="center")
    figure.text(0.3, 0.94, "■ Boltbox", color="C1", weight="bold", va="center")


FIGURES = {"recipes": curves, "few-images": few_images, "speed": speed}


def draw(folder: Path) -> None:
    """Write every figure in both themes into a folder."""
    for theme, colours in THEMES.items():
        with mpl.rc_context(style(*colours)):
            for name, figure in FIGURES.items():
                file = folder / f"{name}-{theme}.svg"
                figure().savefig(file, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(PICTURES)
