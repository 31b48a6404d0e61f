"""A picture of measurements side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from detector.report.figure import new_figure

USUAL, CHOSEN, ERROR = "#56B4E9", "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Panel:
    """A quantity of all rows. values: (n,); None where a row has none · form: of the number beside a bar."""

    title: str
    values: Sequence[float | None]
    form: str


def draw_bars(
    file: BinaryIO,
    names: Sequence[str],
    panels: Sequence[Panel],
    chosen: int | None = None,
    errors: Sequence[str] = (),
) -> None:
    """A bar for each row in each panel, the first row at the top, as PNG.

    Args:
        names: of the rows.
        panels: the first is as wide as two others.
        chosen: Number of the row whose bars are darker.
        errors: of each row, in place of its first bar; "" where there is none.
    """
    rows = range(len(names))
    figure = new_figure(12, 1.6 + 0.34 * len(names), layout="constrained")
    colours = [CHOSEN if k == chosen else USUAL for k in rows]
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=[2] + [1] * (len(panels) - 1))[0]
    for axis, panel in zip(axes, panels, strict=True):
        lengths = [value or 0.0 for value in panel.values]
        bars = axis.barh(rows, lengths, color=colours)
        axis.bar_label(bars, ["" if v is None else panel.form.format(v) for v in panel.values], padding=3, fontsize=9)
        axis.set_title(panel.title, fontsize=11)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.margins(x=0.25)
    for k, error in enumerate(errors):
        axes[0].text(0, k, f" {error[:60]}" if error else "", va="center", fontsize=8, color=ERROR)
    axes[0].set_yticks(rows, names)
    axes[0].invert_yaxis()
    figure.savefig(file, format="png", dpi=110)
