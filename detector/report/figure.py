"""Pictures drawn by matplotlib, in which all text is plain text: never mathematics or TeX."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boltbox.detector.system.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours without the yellow one, which is faint on white. Lines differ in their
# dashes too, areas in their hatching.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...")
DOTS = 110  # dots an inch
PLAIN: dict[Any, Any] = {
    "text.parse_math": False,
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
}


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure, in inches, which is written to `path` at the end. Names of classes, files
    and runs may be drawn in it as they are, `$` included; ticks of a logarithmic axis need a
    formatter of their own ("{x:g}"), since matplotlib writes them as mathematics.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(PLAIN), warnings.catch_warnings():
        # a box is drawn in place of a letter that the font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure((width, height), layout="constrained")
        yield figure
        write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=DOTS))


def short(name: str, most: int = 20) -> str:
    """A name that fits beside a chart.

    >>> short("polychromatic triangle"), short("disc")
    ('polychromatic trian…', 'disc')
    """
    name = name if len(name) <= most else f"{name[: most - 1]}…"
    # matplotlib leaves names that begin with an underscore out of legends
    return f" {name}" if name.startswith("_") else name
