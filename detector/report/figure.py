"""Makes matplotlib's figures: all text in them is plain text, never mathematics or TeX."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN: dict[Any, bool] = {
    "text.parse_math": False,
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
}


def new_figure(width: float, height: float, layout: str | None = None) -> Figure:
    """An empty figure, in inches, without pyplot's state. Names of classes, files and runs may be
    drawn in it as they are, `$` included; ticks of a logarithmic axis need a formatter of their own
    ("{x:g}"), since matplotlib writes them as mathematics.
    """
    return _plain_figure()(figsize=(width, height), layout=layout)


def legend_label(name: str) -> str:
    """matplotlib leaves names that begin with an underscore out of legends."""
    return f" {name}" if name.startswith("_") else name


@cache
def _plain_figure() -> Any:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class PlainFigure(Figure):
        """The settings hold while it is drawn, when ticks get their texts, and nowhere else: they
        are the user's."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            FigureCanvasAgg(self)

        def draw(self, renderer: Any) -> None:
            with matplotlib.rc_context(PLAIN), warnings.catch_warnings():
                # a box is drawn in its place
                warnings.filterwarnings("ignore", message="Glyph .* missing from")
                for text in self.findobj(Text):
                    assert isinstance(text, Text)
                    text.set_parse_math(False)
                    text.set_usetex(False)
                super().draw(renderer)

    return PlainFigure
