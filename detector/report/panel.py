"""One chart a picture, so that a page can place them side by side or one below the other and the
text stays legible."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from boltbox.detector.report.figure import new_figure
from boltbox.detector.system.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours without the yellow one, which is faint on white; a line differs in its
# dashes and marks too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 2)),
    "-",
)
MARKS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "---")
TALL, WIDE, DOTS = 3.9, 5.6, 120  # inches, dots an inch


def panel(
    title: str,
    x: str = "",
    y: str = "",
    wide: float = WIDE,
    tall: float = TALL,
    layout: str | None = None,
) -> Any:
    """A figure and its one pair of axes."""
    figure = new_figure(wide, tall, layout)
    axis = figure.subplots()
    if layout is None:  # a constrained layout takes as long as all the rest
        figure.subplots_adjust(
            left=0.68 / wide, right=1 - 0.2 / wide, top=1 - 0.38 / tall, bottom=0.58 / tall
        )
    axis.set_title(title, fontsize=12)
    axis.set_xlabel(x, fontsize=11)
    axis.set_ylabel(y, fontsize=11)
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    return figure, axis


def style(k: int) -> dict[str, Any]:
    """Colour and dashes of the k-th line."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)]}


def few_marks(points: int) -> int:
    """Every how many points a mark stands, so that a line has no more than a dozen."""
    return max(points // 12, 1)


def legend(axis: Axes) -> None:
    """Where it hides least, if there is anything to name."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=9, framealpha=0.9, handlelength=3)


def save(figure: Figure, path: Path, tight: bool = False) -> Path:
    """tight: without empty margins."""
    write_atomically(
        path,
        lambda file: figure.savefig(
            file, format="png", dpi=DOTS, bbox_inches="tight" if tight else None
        ),
    )
    return path
