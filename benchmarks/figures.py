"""The figures of the README and the pages, drawn from committed measurements.

    python -m benchmarks.figures

writes docs/pictures/NAME-light.svg and NAME-dark.svg. It takes seconds and trains nothing.
`tests/house/test_figures.py` draws them again and compares the curves and bars.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from boltbox.detector.system.csv_table import read_table

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs/pictures"
SETS = {"BCCD": "Blood cells", "playing_cards": "Playing cards", "aquarium": "Aquarium"}
TRAINED_ON = {"BCCD": 205, "playing_cards": 296, "aquarium": 400}  # images of the whole set
RECIPES = {"yolov5": "YOLOv5 recipe", "default": "Boltbox"}
STYLE = {
    "font.size": 17,
    "svg.hashsalt": "boltbox",  # the same ids each time
    "path.simplify": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
# a number beside what it measures, moved by some points
NOTE: dict[str, Any] = {"textcoords": "offset points", "weight": "bold"}


class Theme(NamedTuple):
    """Colours of text, grid and the two recipes, on a transparent ground."""

    text: str
    grid: str
    yolov5: str
    default: str


THEMES = {
    "light": Theme("#1f2328", "#d1d9e0", "#6e7781", "#c2410c"),
    "dark": Theme("#e6edf3", "#3d444d", "#9198a1", "#fb923c"),
}


def runs(name: str, recipe: str) -> list[dict[str, str]]:
    """The trainings from yolov5n.pt (30 epochs, seeds 0 to 2) on a dataset, of recipes.csv."""
    rows = read_table(HERE / "recipes.csv")
    expected = ("weights", recipe, name)
    return [row for row in rows if (row["study"], row["recipe"], row["data"]) == expected]


def curves(theme: Theme) -> Figure:
    """AP on val against the epoch: mean of the seeds, and their range."""
    figure, axes = panels(theme)
    for axis, name in zip(axes, SETS, strict=True):
        for recipe in RECIPES:
            ap = np.array([run["AP"].split() for run in runs(name, recipe)], float)
            ap *= 100  # (seeds, epochs)
            epochs = 1 + np.arange(ap.shape[1])
            mean = ap.mean(0)
            colour = getattr(theme, recipe)
            axis.plot(epochs, mean, color=colour, linewidth=3, gid=f"{name}-{recipe}")
            axis.fill_between(epochs, ap.min(0), ap.max(0), color=colour, alpha=0.25, linewidth=0)
            axis.annotate(f"{mean[-1]:.0f}", (epochs[-1], mean[-1]), (5, -6), color=colour, **NOTE)
        axis.set(xlabel="epoch", xlim=(0, 30), xticks=(0, 10, 20, 30))
    axes[0].set_ylabel("COCO AP, val")
    return figure


def few_images(theme: Theme) -> Figure:
    """AP after 30 epochs with 50, 100 and all training images: mean of the seeds, and their
    range."""
    figure, axes = panels(theme)
    note = NOTE | {"ha": "center", "size": 14}
    for axis, name in zip(axes, SETS, strict=True):
        for place, subset in enumerate((f"{name}-50", f"{name}-100", name)):
            for x, recipe in zip((place - 0.2, place + 0.2), RECIPES, strict=True):
                colour = getattr(theme, recipe)
                scores = 100 * np.array([run["score"] for run in runs(subset, recipe)], float)
                mean = scores.mean()
                ends = (scores.min(), scores.max())
                axis.bar(x, mean, 0.38, color=colour, gid=f"{subset}-{recipe}")
                axis.plot((x, x), ends, color=theme.text, linewidth=1.5)
                axis.annotate(f"{mean:.0f}", (x, ends[1]), (0, 4), color=colour, **note)
        axis.set(xlabel="training images")
        axis.set_xticks(range(3), ["50", "100", str(TRAINED_ON[name])])
    axes[0].set_ylabel("COCO AP")
    return figure


def speed(theme: Theme) -> Figure:
    """Seconds of whole processes beside YOLOv5, each pair relative to YOLOv5."""
    seconds = {}
    lines = (HERE / "speed_beside_yolov5.csv").read_text().splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        measured = [float(row[name]) for name in ("seconds 1", "seconds 2") if row[name]]
        seconds[row["work"], row["conditions"], row["tool"]] = sum(measured) / len(measured)
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
            colour = getattr(theme, recipe)
            length = value / theirs
            axis.barh(y, length, 0.38, color=colour, gid=f"{work}-{place}-{recipe}")
            axis.annotate(f"{value:.3g} s", (length, y), (6, 0), color=colour, va="center", **NOTE)
    axis.set_yticks(range(len(labels)), labels)
    axis.set(xlim=(0, 1.12), xticks=())
    axis.invert_yaxis()
    paint(axis, theme)
    axis.spines["bottom"].set_visible(False)
    legend(figure, theme, "YOLOv5")
    return figure


def panels(theme: Theme) -> tuple[Figure, list]:
    """Three panels side by side, one per dataset."""
    figure = Figure((12, 4.6))
    axes = []
    for left, title in zip((0.075, 0.395, 0.715), SETS.values(), strict=True):
        axis = figure.add_axes((left, 0.17, 0.25, 0.62), title=title, ylim=(0, 100))
        paint(axis, theme)
        axis.grid(axis="y", color=theme.grid, linewidth=1)
        axis.set_axisbelow(True)
        axes.append(axis)
    legend(figure, theme, RECIPES["yolov5"])
    return figure, axes


def paint(axis: mpl.axes.Axes, theme: Theme) -> None:
    axis.patch.set_alpha(0)
    axis.tick_params(colors=theme.text, length=0)
    for name in ("left", "bottom"):
        axis.spines[name].set_color(theme.grid)
    for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
        text.set_color(theme.text)


def legend(figure: Figure, theme: Theme, theirs: str) -> None:
    """Above the panels, in the colours of the recipes."""
    place: dict[str, Any] = {"weight": "bold", "va": "center"}
    figure.text(0.075, 0.94, f"■ {theirs}", color=theme.yolov5, **place)
    figure.text(0.3, 0.94, f"■ {RECIPES['default']}", color=theme.default, **place)


FIGURES: dict[str, Callable[[Theme], Figure]] = {
    "recipes": curves,
    "few-images": few_images,
    "speed": speed,
}


def draw(folder: Path) -> list[Path]:
    """Write every figure in both themes into a folder; returns the paths."""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, figure in FIGURES.items():
            for theme, colours in THEMES.items():
                paths.append(folder / f"{name}-{theme}.svg")
                figure(colours).savefig(paths[-1], transparent=True, metadata={"Date": None})
    return paths


if __name__ == "__main__":
    for path in draw(PICTURES):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
