"""A report on the anchors: a table by level and by class, a picture."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.model.anchors import Choice, measure, side_ratios
from boltbox.detector.model.head import Head
from boltbox.detector.report.panel import panel, save
from boltbox.detector.system.atomic_file import write_atomically

COLUMNS = ("labels", "BPR", "AAT", "mean best ratio")


def no_anchors(head: Head) -> str:
    """What is said instead of a report."""
    return f"anchors: {type(head).__name__} has none, so there is nothing to fit to the labels"


@dataclass
class AnchorReport:
    """Anchors before and after the choice, and what they were measured on.

    before: (levels, A, 2) pixels · choice: what was decided · strides: of the levels · sizes (n, 2)
    pixels of the network's input, classes (n,): of the training labels · seen (m, 2): sizes after
    the augmentation, or None · names: of the classes.
    """

    before: np.ndarray
    choice: Choice
    strides: Sequence[int]
    sizes: np.ndarray
    classes: np.ndarray
    seen: np.ndarray | None
    names: list[str]
    image_size: int
    anchor_t: float

    def content(self) -> dict[str, Any]:
        """Everything as plain types, for anchors.json."""
        sets = (
            {"before": self.before, "after": self.choice.anchors}
            if self.choice.changed
            else {"before": self.before}
        )
        return {
            "changed": self.choice.changed,
            "reason": self.choice.reason,
            "image_size": self.image_size,
            "anchor_t": self.anchor_t,
            **{name: self._described(anchors) for name, anchors in sets.items()},
        }

    def _described(self, anchors: np.ndarray) -> dict[str, Any]:
        flat = anchors.reshape(-1, 2)
        fit = {"labels": measure(flat, self.sizes, self.anchor_t)._asdict()}
        if self.seen is not None and len(self.seen):
            fit["augmented"] = measure(flat, self.seen, self.anchor_t)._asdict()
        return {
            "anchors": anchors.reshape(len(anchors), -1).round(2).tolist(),
            "fit": fit,
            "rows": self._rows(anchors),
        }

    def _rows(self, anchors: np.ndarray) -> list[dict[str, Any]]:
        """All labels, then by level (a label belongs to the level of its best anchor), then by
        class."""
        ratios = side_ratios(self.sizes, anchors.reshape(-1, 2))  # (n, levels * A)
        level = ratios.argmax(1) // anchors.shape[1]
        groups = [("all", np.ones(len(level), bool))]
        groups += [(f"stride {s}", level == i) for i, s in enumerate(self.strides)]
        groups += [(name, self.classes == c) for c, name in enumerate(self.names)]
        rows = []
        for name, chosen in groups:
            own, above = ratios[chosen], ratios[chosen] > 1 / self.anchor_t
            means = (
                (above.any(1).mean(), above.sum(1).mean(), own.max(1).mean())
                if len(own)
                else (None,) * 3
            )
            values = (len(own), *(v if v is None else float(v) for v in means))
            rows.append({"name": name, **dict(zip(COLUMNS, values, strict=True))})
        return rows

    def table(self) -> str:
        """The rows as text; if the anchors changed, each value as before > after."""
        content = self.content()
        before = content["before"]["rows"]
        after = content.get("after", content["before"])["rows"]
        lines = [["anchors", *COLUMNS]]
        for old, new in zip(before, after, strict=True):
            line = [old["name"]]
            for column in COLUMNS:
                texts = [
                    _number(row[column]) for row in ((old, new) if self.choice.changed else (old,))
                ]
                line.append(texts[0] if len(set(texts)) == 1 else " > ".join(texts))
            lines.append(line)
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join(
            "  ".join(
                v.ljust(w) if i == 0 else v.rjust(w)
                for i, (v, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def yaml_line(self) -> str:
        """The anchors in use, to paste into a configuration."""
        rows = self.choice.anchors.reshape(len(self.choice.anchors), -1).round(2).tolist()
        return f"model: {{anchors: {rows}}}"

    def save(self, folder: Path) -> None:
        """To anchors.json."""
        text = json.dumps(self.content(), indent=1)
        write_atomically(folder / "anchors.json", lambda file: file.write(text.encode()))

    def draw(self, path: Path, most: int = 4000) -> None:
        """Labels as a scatter of width and height with both anchor sets drawn in, to an image
        file."""
        from matplotlib.ticker import LogLocator, NullFormatter

        figure, axis = panel(self.choice.reason, "width, px", "height, px", wide=7.5, tall=7)
        shown = self.sizes
        if len(shown) > most:
            shown = shown[np.random.default_rng(0).choice(len(shown), most, replace=False)]
        axis.scatter(
            *_columns(shown),
            s=6,
            color="0.6",
            alpha=0.5,
            linewidths=0,
            label=f"labels ({len(self.sizes)})",
        )
        marks = zip(self.strides, ("o", "s", "^", "D", "v", "P"), strict=False)
        for i, (stride, mark) in enumerate(marks):
            if self.choice.changed:
                hollow: dict[str, Any] = {
                    "facecolors": "none",
                    "edgecolors": "#D55E00",
                    "linewidths": 1.5,
                }
                axis.scatter(
                    *_columns(self.before[i]),
                    s=70,
                    marker=mark,
                    label=f"before, stride {stride}",
                    **hollow,
                )
            axis.scatter(
                *_columns(self.choice.anchors[i]),
                s=70,
                marker=mark,
                color="#0072B2",
                label=f"in use, stride {stride}",
            )
        axis.set(xscale="log", yscale="log")
        axis.set_aspect("equal", adjustable="datalim")
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(LogLocator(subs=(1, 2, 5)))
            side.set_major_formatter("{x:g}")
            side.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
        save(figure, path)


def _columns(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return sizes[:, 0], sizes[:, 1]


def _number(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
