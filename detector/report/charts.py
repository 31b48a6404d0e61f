"""Charts by matplotlib: curves, confidence, confusion, labels. All text in them is plain text:
never mathematics or TeX."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.evaluation.class_metrics import CONFIDENCES, RECALLS, ClassMetrics, f1
from boltbox.detector.evaluation.coco import COCO_AREAS
from boltbox.detector.evaluation.confusion import confusion_matrix
from boltbox.detector.system.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]  # of a table, by column
Points = list[tuple[float, float]]
Panels = Mapping[str, Mapping[str, Points]]  # lines by name, by title

DOTS = 110  # dots an inch
STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    # Okabe and Ito's colours without the yellow one, which is faint on white
    "axes.prop_cycle": (
        "cycler('color', ['0072B2', 'D55E00', '009E73', 'CC79A7', 'E69F00', '56B4E9', '000000'])"
        " + cycler('linestyle', ['-', '--', '-.', ':', '-', '--', '-.'])"
    ),
}
PANELS = {  # title and columns of metrics.csv; the losses come before
    "Precision and recall": ("val/P", "val/R"),
    "mAP and fitness": ("val/mAP50", "val/mAP50-95", "val/fitness"),
    "COCO's AP by size": ("val/coco/AP", *(f"val/coco/AP_{size}" for size in COCO_AREAS)),
    "Learning rate": ("lr/bias", "lr/weight", "lr/norm"),
    "Seconds an epoch": ("seconds",),
}
NAMED = 6  # classes with colours of their own; more are thin grey lines
DRAWN = 100  # classes of a confusion matrix, at most
WRITTEN = 20  # classes up to which the numbers stand in its cells
BARS = 30  # classes with a bar of their own: the commonest


@contextlib.contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure, in inches, which is written to `path` at the end. Names of classes, files
    and runs may be drawn in it as they are, `$` included; ticks of a logarithmic axis need a
    formatter of their own ("{x:g}"), since matplotlib writes them as mathematics.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # a box is drawn in place of a letter that the font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure((width, height), layout="constrained")
        yield figure
        write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=DOTS))


def short(name: str) -> str:
    """A name that fits beside a chart.

    >>> short("polychromatic triangle"), short("disc")
    ('polychromatic trian…', 'disc')
    """
    name = name if len(name) <= 20 else f"{name[:19]}…"
    # matplotlib leaves names that begin with an underscore out of legends
    return f" {name}" if name.startswith("_") else name


def draw_curves(rows: Rows, path: Path) -> bool:
    """Losses, metrics and learning rates of a metrics.csv, to a PNG file; see `draw_panels`."""
    losses = {name: (f"train/{name}", f"val/{name}") for name in loss_names(rows)}
    panels = {
        title: {column: points(rows, column) for column in columns}
        for title, columns in {**losses, **PANELS}.items()
    }
    return draw_panels(panels, path)


def draw_panels(panels: Panels, path: Path) -> bool:
    """Three panels a row over epochs, to a PNG file, or False if there is nothing to draw: panels
    without a point, and lines that have none in any panel, are left out. Where all panels have the
    same lines, one legend names them."""
    drawn = {title: lines for title, lines in panels.items() if any(lines.values())}
    if not drawn:
        return False
    seen = {name for lines in drawn.values() for name, pairs in lines.items() if pairs}
    same = len({tuple(lines) for lines in drawn.values()}) == 1
    rows = math.ceil(len(drawn) / 3)
    with picture(path, 13, 3.5 * rows) as figure:
        for k, (title, lines) in enumerate(drawn.items(), 1):
            axis = figure.add_subplot(rows, 3, k)
            axis.set_title(title)
            named = {name: pairs for name, pairs in lines.items() if name in seen}
            add_lines(axis, "epoch", named, legend=len(named) > 1 and not same)
        if same:
            figure.legend(*axis.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return True


def add_lines(axis: Axes, x: str, lines: Mapping[str, Points], legend: bool) -> None:
    """Lines over whole numbers called `x`."""
    for name, pairs in lines.items():
        across = [pair[0] for pair in pairs]
        up = [pair[1] for pair in pairs]
        axis.plot(across, up, label=short(name), marker=".", markersize=4)
    axis.set(ylim=(0, None), xlabel=x)
    axis.locator_params("x", integer=True, nbins=7)
    axis.grid(visible=True)
    if legend:
        axis.legend(fontsize=9)


def loss_names(rows: Rows) -> list[str]:
    """Of the parts of the loss in a metrics.csv, whatever they are called."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [name.removeprefix("train/") for name in columns if name.startswith("train/")]


def points(rows: Rows, column: str) -> Points:
    """Epoch, counted from 1, and value, of the rows of a metrics.csv that hold a number."""
    found = []
    for row in rows:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            pair = float(row["epoch"]) + 1, float(row[column])
            found += [pair] if all(map(math.isfinite, pair)) else []
    return found


def draw_confidence(metrics: ClassMetrics, names: Sequence[str], path: Path) -> None:
    """Precision, recall and F1 of every class, against each other and against confidence, to a PNG
    file. Classes are thin lines, their mean is thick; a dotted line marks the confidence with the
    best mean F1."""
    p, r = metrics.precision_curve, metrics.recall_curve
    panels = {
        "Precision against recall, IoU 0.5": (RECALLS, metrics.precision_at_recall),
        "F1 against confidence": (CONFIDENCES, f1(p, r)),
        "Precision against confidence": (CONFIDENCES, p),
        "Recall against confidence": (CONFIDENCES, r),
    }
    thin: dict[str, Any] = {"color": "0.72", "linestyle": "-"}
    if len(metrics.classes) <= NAMED:
        thin = {"label": [short(names[c]) for c in metrics.classes]}
    with picture(path, 13, 8.5) as figure:
        axes = figure.subplots(2, 2).flat
        for axis, (title, (at, curves)) in zip(axes, panels.items(), strict=True):
            axis.set(title=title, xlim=(0, 1), ylim=(0, 1.04))
            axis.plot(at, curves.T, linewidth=1, **thin)
            mean = {"label": "mean", "color": "black", "linestyle": "-", "linewidth": 2.5}
            axis.plot(at, curves.mean(0), **mean)
            if at is CONFIDENCES:
                best = metrics.best_confidence
                axis.axvline(best, color="0.35", linestyle=":", label=f"best F1: {best:.3f}")
            axis.grid(visible=True)
            axis.legend(fontsize=9)


def draw_confusion(pairs: np.ndarray, names: Sequence[str], path: Path) -> None:
    """The confusion matrix, legible for one class and for thousands, to a PNG file.

    Rows are what was predicted, columns what is true, each column in shares; the last row: missed,
    the last column: nothing there. Classes that occur are shown, at most DRAWN: the commonest, and
    the others together. pairs (n, 2): as `confused_pairs` gives them, of all images."""
    present, times = np.unique(pairs[pairs < len(names)], return_counts=True)
    kept = sorted(present[np.argsort(-times, kind="stable")[:DRAWN]].tolist())
    matrix = confusion_matrix(pairs, len(names), kept)
    shares, n = matrix / np.maximum(matrix.sum(0), 1), len(matrix)
    labels = [short(names[c]) for c in kept]
    labels += [*["other classes"] * (len(present) > len(kept)), "background"]
    written = n <= WRITTEN + 1
    side, font = (2.5 + 0.45 * max(n, 4), 8) if written else (2.5 + 0.155 * n, 6)
    with picture(path, side + 0.7, side) as figure:
        axis = figure.add_subplot()
        image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(n), labels, rotation=90, fontsize=font)
        axis.set_yticks(range(n), labels, fontsize=font)
        axis.set_xlabel("true (background: false positives)")
        axis.set_ylabel("predicted (background: missed)")
        figure.colorbar(image, shrink=0.7, label="share of the true class")
        for y, x in np.argwhere(matrix) if written else ():
            colour, text = "white" if shares[y, x] > 0.55 else "black", f"{shares[y, x]:.2f}"
            axis.text(x, y, text, ha="center", va="center", fontsize=font, color=colour)


def draw_labels(datasets: Mapping[str, DetectionDataset], image_size: int, path: Path) -> None:
    """Boxes of each class, and sizes in pixels of the network's input, to a PNG file; none if there
    are no boxes. Crowd regions, which nobody trains on, are left out."""
    lengths = {}  # square roots of areas
    for split, dataset in datasets.items():
        areas = dataset.object_sizes(image_size).prod(1, dtype=float)[~dataset.labels.crowd]
        lengths[f"{split} ({len(areas)})"] = np.sqrt(areas).clip(1)
    if not any(map(len, lengths.values())):
        return
    with picture(path, 13, 6) as figure:
        classes, sizes = figure.subplots(1, 2)
        names = next(iter(datasets.values())).names
        counts = np.array([dataset.class_counts() for dataset in datasets.values()])
        shown = np.argsort(-counts.sum(0), kind="stable")[:BARS][::-1]
        high = 0.8 / len(counts)
        for k, (split, of_class) in enumerate(zip(datasets, counts[:, shown], strict=True)):
            bars = classes.barh(np.arange(len(shown)) - k * high, of_class, high, label=split)
            classes.bar_label(bars, padding=2, fontsize=7)
        classes.set_yticks(range(len(shown)), [short(names[c]) for c in shown], fontsize=8)
        classes.set_title(f"Boxes of each class, at most {BARS} classes")
        classes.margins(x=0.12)
        classes.legend()
        sizes.hist(
            list(lengths.values()),
            2.0 ** np.arange(0, np.log2(image_size) + 1, 0.5),
            weights=[np.full(len(x), 1 / max(len(x), 1)) for x in lengths.values()],
            histtype="step",
            label=list(lengths),
        )
        for border in (32, 96):
            sizes.axvline(border, color="0.4", linestyle=":")
        sizes.set_title(f"Square root of the area at {image_size} px; dotted: COCO's sizes")
        sizes.set(xlabel="pixels", ylabel="share of the boxes")
        sizes.set_xscale("log", base=2)
        sizes.xaxis.set_major_formatter("{x:g}")
        sizes.legend()
