"""Charts of the errors by kind, size and class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from boltbox.detector.evaluation.error_kinds import KINDS, MISSED, SIZES, ErrorCounts
from boltbox.detector.report.panel import COLOURS, HATCHES, panel, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WRONG = (*KINDS[1:], MISSED)
MOST = 12  # classes in the chart


def draw_errors(errors: ErrorCounts, names: Sequence[str], folder: Path) -> list[Path]:
    """errors_kinds.png, errors_gain.png and errors_classes.png."""
    return [
        _kinds(errors, folder / "errors_kinds.png"),
        _gain(errors, folder / "errors_gain.png"),
        _classes(errors, names, folder / "errors_classes.png"),
    ]


def _kinds(errors: ErrorCounts, path: Path) -> Path:
    figure, axis = panel(f"Errors at confidence {errors.confidence:.3f}", "number")
    counts = np.array([errors.by_kind[kind] for kind in WRONG])  # (kinds, sizes)
    left = np.zeros(len(WRONG))
    for k, size in enumerate(SIZES):
        look = {
            "color": COLOURS[(5, 0, 1)[k]],
            "hatch": HATCHES[k],
            "edgecolor": "white",
            "linewidth": 0.6,
        }
        axis.barh(range(len(WRONG)), counts[:, k], left=left, label=size, **look)
        left = left + counts[:, k]
    for y, total in enumerate(left):
        axis.text(total, y, f" {int(total)}", va="center", fontsize=9)
    _finish(figure, axis, WRONG)
    axis.legend(fontsize=9, title="size in COCO's classes", title_fontsize=8)
    return save(figure, path)


def _gain(errors: ErrorCounts, path: Path) -> Path:
    figure, axis = panel(f"mAP50 that mending would add to {errors.map50['hit']:.3f}", "mAP50")
    gains = [errors.gain(kind) for kind in WRONG]
    axis.barh(range(len(WRONG)), gains, color=COLOURS[0])
    for y, gain in enumerate(gains):
        axis.text(max(gain, 0), y, f" {gain:+.3f}", va="center", fontsize=9)
    _finish(figure, axis, WRONG)
    return save(figure, path)


def _classes(errors: ErrorCounts, names: Sequence[str], path: Path) -> Path:
    counts = np.array([errors.by_class[kind] for kind in WRONG])  # (kinds, classes)
    order = [
        c for c in np.argsort(-counts.sum(0), kind="stable")[:MOST].tolist() if counts[:, c].any()
    ]
    more = f", {len(order)} classes with most" if len(order) < len(names) else ""
    figure, axis = panel(f"Errors by class{more}", "number", tall=max(2.6 + 0.27 * len(order), 3.9))
    left = np.zeros(len(order))
    for k, kind in enumerate(WRONG):
        values = counts[k, order]
        axis.barh(
            range(len(order)),
            values,
            left=left,
            label=kind,
            color=COLOURS[k],
            hatch=HATCHES[k],
            edgecolor="white",
            linewidth=0.6,
        )
        left = left + values
    _finish(figure, axis, [n if len(n) <= 18 else n[:17] + "…" for n in (names[c] for c in order)])
    tall = figure.get_size_inches()[1]
    figure.subplots_adjust(top=1 - 0.95 / tall)
    axis.set_title(axis.get_title(), fontsize=12, pad=44)
    axis.legend(
        fontsize=8,
        ncols=3,
        loc="lower center",
        bbox_to_anchor=(0.42, 1.0),
        frameon=False,
        handlelength=2.5,
    )
    return save(figure, path)


def _finish(figure: Figure, axis: Axes, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels, fontsize=9)
    axis.invert_yaxis()
    axis.margins(x=0.16)
    axis.grid(visible=False, axis="y")
    figure.subplots_adjust(left=0.27)
