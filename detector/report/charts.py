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
from boltbox.detector.evaluation.confusion import confusion_matrix
from boltbox.detector.system.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]  # of a table, by column
Points = list[tuple[float, float]]
Panels = Mapping[str, Mapping[str, Points]]  # lines by name, by title

DOTS = 110  # per inch
STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "text.usetex": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    # Okabe and Ito's colours without the yellow one, which is faint on white
    "axes.prop_cycle": (
        "cycler('color', ['0072B2', 'D55E00', '009E73', 'CC79A7', 'E69F00', '56B4E9', '000000'])"
        " + cycler('linestyle', ['-', '--', '-.', ':', '-', '--', '-.'])"
    ),
}
PANELS = {  # title and columns of metrics.csv, between losses and learning rates
    "Precision and recall": ["val/P", "val/R"],
    "mAP and fitness": ["val/mAP50", "val/mAP50-95", "val/fitness"],
}
COLOURED = 6  # maximum number of classes with a colour each; more are thin grey lines
MATRIX_CLASSES = 100  # maximum of a confusion matrix
MATRIX_NUMBERS = 20  # maximum number of classes whose cells show their numbers
BARS = 30  # maximum number of classes with a bar: the most frequent


@contextlib.contextmanager
def picture(path: Path, width: float, height: float, fitted: bool = True) -> Iterator[Figure]:
    """An empty figure, which is written as a PNG file at the end. Names of classes, files and runs
    are drawn as plain text, `$` included.

    Args:
        path: The file.
        width: In inches.
        height: In inches.
        fitted: The margins fit the texts, which takes twice as long as drawing. Off: they suit a
            title and an axis of numbers.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # a box is drawn instead of a letter that the font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure((width, height), layout="constrained" if fitted else None)
        if not fitted:
            figure.subplots_adjust(0.05, 0.5 / height, 0.99, 1 - 0.3 / height, 0.2, 0.35)
        yield figure
        write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=DOTS))


def short(name: str) -> str:
    """A name that fits beside a chart.

    Args:
        name: Of a class, a file or a run.

    >>> short("polychromatic triangle"), short("disc")
    ('polychroma… triangle', 'disc')
    """
    if len(name) > 20:
        name = f"{name[:10]}…{name[-9:]}"
    # matplotlib leaves names that begin with an underscore out of legends
    return f" {name}" if name.startswith("_") else name


def draw_curves(rows: Rows, path: Path) -> bool:
    """Losses, metrics and learning rates of a metrics.csv, to a PNG file; see `draw_panels`.

    Args:
        rows: Of a metrics.csv.
        path: The PNG file.

    Returns:
        Whether there was anything to draw.
    """
    columns: dict[str, list[str]] = {}
    rates = []  # of the groups of parameters
    for column in rows[0] if rows else ():
        if column.startswith("lr/"):
            rates.append(column)
        if column.startswith("train/"):  # a part of the loss, whatever it is called
            name = column.removeprefix("train/")
            columns[name] = [column, f"val/{name}"]
    panels: dict[str, dict[str, Points]] = {}
    for title, names in (columns | PANELS | {"Learning rate": rates}).items():
        panels[title] = {name: points(rows, name) for name in names}
    return draw_panels(panels, path)


def draw_panels(panels: Panels, path: Path) -> bool:
    """Three panels per row over epochs, to a PNG file. Panels without a point are left out.

    Args:
        panels: By title, the points of each line by its name.
        path: The PNG file.

    Returns:
        Whether there was anything to draw.
    """
    panels = {title: lines for title, lines in panels.items() if any(lines.values())}
    if not panels:
        return False
    rows = math.ceil(len(panels) / 3)
    with picture(path, 13, 3.5 * rows, fitted=False) as figure:
        for number, (title, lines) in enumerate(panels.items(), 1):
            axis = figure.add_subplot(rows, 3, number)
            for name, pairs in lines.items():
                xs = [pair[0] for pair in pairs]
                ys = [pair[1] for pair in pairs]
                # a line without points keeps its colour in the other panels
                label = short(name) if pairs else "_"
                axis.plot(xs, ys, label=label, marker=".", markersize=4)
            axis.set(title=title, xlabel="epoch")
            axis.axhline(0, color="0.5", linewidth=0.8)
            axis.locator_params("x", integer=True, nbins=7, min_n_ticks=1)
            axis.grid(visible=True)
            if len(lines) > 1:
                axis.legend(fontsize=9)
    return True


def points(rows: Rows, column: str) -> Points:
    """Epoch, counted from 1, and value, of the rows of a metrics.csv that hold a number.

    Args:
        rows: Of a metrics.csv.
        column: Name of the values.

    Returns:
        (epoch, value) pairs.
    """
    pairs: Points = []
    for row in rows:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            epoch = float(row["epoch"]) + 1
            value = float(row[column])
            if math.isfinite(epoch) and math.isfinite(value):
                pairs.append((epoch, value))
    return pairs


def draw_confidence(metrics: ClassMetrics, names: Sequence[str], path: Path) -> None:
    """Precision, recall and F1 of every class, against each other and against confidence, to a PNG
    file. Classes are thin lines, their mean is thick; a dotted line marks the confidence with the
    best mean F1.

    Args:
        metrics: By class.
        names: Class names.
        path: The PNG file.
    """
    panels = {
        "Precision against recall, IoU 0.5": (RECALLS, metrics.precision_at_recall),
        "F1 against confidence": (
            CONFIDENCES,
            f1(metrics.precision_curve, metrics.recall_curve),
        ),
        "Precision against confidence": (CONFIDENCES, metrics.precision_curve),
        "Recall against confidence": (CONFIDENCES, metrics.recall_curve),
    }
    style: dict[str, Any] = {"color": "0.72", "linestyle": "-"}
    if len(metrics.classes) <= COLOURED:
        style = {"label": [short(names[c]) for c in metrics.classes]}
    with picture(path, 13, 8.5, fitted=False) as figure:
        axes = figure.subplots(2, 2).flat
        for axis, (title, (xs, curves)) in zip(axes, panels.items(), strict=True):
            axis.set(title=title, xlim=(0, 1), ylim=(0, 1.04))
            axis.plot(xs, curves.T, linewidth=1, **style)
            axis.plot(xs, curves.mean(0), label="mean", color="black", linestyle="-", linewidth=2.5)
            if xs is CONFIDENCES:
                best = metrics.best_confidence
                axis.axvline(best, color="0.35", linestyle=":", label=f"best F1 at {best:.3f}")
            axis.grid(visible=True)
            axis.legend(fontsize=9)


def draw_confusion(pairs: np.ndarray, names: Sequence[str], path: Path) -> None:
    """The confusion matrix, legible for one class and for thousands, to a PNG file.

    Rows are predicted classes, columns true ones, each column in shares; the last row: missed, the
    last column: nothing there. At most MATRIX_CLASSES of the classes that occur have a row each:
    the most frequent; the others share one.

    Args:
        pairs: (n, 2) predicted and true class, of all images, see `confused_pairs`.
        names: Class names.
        path: The file.
    """
    classes, counts = np.unique(pairs[pairs < len(names)], return_counts=True)
    most_frequent = np.argsort(-counts, kind="stable")[:MATRIX_CLASSES]
    shown = np.sort(classes[most_frequent]).tolist()
    matrix = confusion_matrix(pairs, len(names), shown)
    shares = matrix / np.maximum(matrix.sum(0), 1)
    labels = [short(names[c]) for c in shown]
    if len(classes) > len(shown):
        labels.append("other classes")
    labels.append("background")
    n = len(labels)
    has_numbers = n <= MATRIX_NUMBERS + 1
    side = 2.5 + 0.45 * max(n, 4) if has_numbers else 2.5 + 0.155 * n
    font = 8 if has_numbers else 6
    with picture(path, side + 0.7, side) as figure:
        axis = figure.add_subplot()
        image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(n), labels, rotation=90, fontsize=font)
        axis.set_yticks(range(n), labels, fontsize=font)
        axis.set_xlabel("true (background: false positives)")
        axis.set_ylabel("predicted (background: missed)")
        figure.colorbar(image, shrink=0.7, label="share of the true class")
        if not has_numbers:
            return
        for y, x in np.argwhere(matrix):
            share = shares[y, x]
            colour = "white" if share > 0.55 else "black"
            axis.text(x, y, f"{share:.2f}", ha="center", va="center", fontsize=font, color=colour)


def draw_labels(datasets: Mapping[str, DetectionDataset], path: Path) -> None:
    """Number of boxes of each class, to a PNG file; none if there are no boxes.

    Args:
        datasets: By split.
        path: The PNG file.
    """
    names = next(iter(datasets.values())).names
    counts = np.array([dataset.class_counts() for dataset in datasets.values()])
    if not counts.any():
        return
    shown = np.argsort(-counts.sum(0), kind="stable")[:BARS][::-1]
    height = 0.8 / len(counts)
    with picture(path, 8, max(0.15 * len(shown) * len(counts), 6)) as figure:
        axis = figure.add_subplot()
        for k, split in enumerate(datasets):
            rows = np.arange(len(shown)) - k * height
            bars = axis.barh(rows, counts[k, shown], height, label=split)
            axis.bar_label(bars, padding=2, fontsize=7)
        axis.set_yticks(range(len(shown)), [short(names[c]) for c in shown], fontsize=8)
        axis.set_title(f"Boxes of each class, at most {BARS} classes")
        axis.margins(x=0.12)
        axis.legend()


def draw_reliability(lines: Mapping[str, np.ndarray], path: Path) -> None:
    """True against predicted shares, to a PNG file.

    Args:
        lines: By name, (n, 2) predicted and true share.
        path: The PNG file.
    """
    with picture(path, 6, 6) as figure:
        axis = figure.add_subplot()
        axis.set(xlabel="predicted", ylabel="true", title="Errors made on purpose, held out")
        axis.plot((0, 1), (0, 1), color="0.72", label="_")
        for name, pairs in lines.items():
            axis.plot(*pairs.T, label=name, marker=".")
        axis.grid(visible=True)
        axis.legend()
