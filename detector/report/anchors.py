"""A report on the anchors: a table by level, a picture."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.model.anchors import Choice, measure, side_ratios
from boltbox.detector.model.head import Head
from boltbox.detector.report.curves import MARKS
from boltbox.detector.report.figure import COLOURS, picture
from boltbox.detector.report.table import aligned
from boltbox.detector.system.atomic_file import write_atomically

MOST_DRAWN = 4000  # labels
COLUMNS = ("labels", "BPR", "AAT", "mean best ratio")


def no_anchors(head: Head) -> str:
    """What is said instead of a report."""
    return f"anchors: {type(head).__name__} has none, so there is nothing to fit to the labels"


@dataclass
class AnchorReport:
    """Anchors before and after the choice, and what they were measured on.

    before: (levels, A, 2) pixels · choice: what was decided · strides: of the levels · sizes (n, 2)
    pixels of the network's input: of the training labels · seen (m, 2): sizes after the
    augmentation, or None.
    """

    before: np.ndarray
    choice: Choice
    strides: Sequence[int]
    sizes: np.ndarray
    seen: np.ndarray | None
    image_size: int
    anchor_t: float

    def content(self) -> dict[str, Any]:
        """Everything as plain types, for anchors.json."""
        sets = {"before": self.before}
        if self.choice.changed:
            sets["after"] = self.choice.anchors
        return {
            "changed": self.choice.changed,
            "reason": self.choice.reason,
            "image_size": self.image_size,
            "anchor_t": self.anchor_t,
            **{name: self._described(anchors) for name, anchors in sets.items()},
        }

    def _described(self, anchors: np.ndarray) -> dict[str, Any]:
        """The anchors, and how well they fit: all labels, and by level (a label belongs to the
        level of its best anchor)."""
        flat = anchors.reshape(-1, 2)
        fits = {"labels": measure(flat, self.sizes, self.anchor_t)._asdict()}
        if self.seen is not None and len(self.seen):
            fits["augmented"] = measure(flat, self.seen, self.anchor_t)._asdict()
        level = side_ratios(self.sizes, flat).argmax(1) // anchors.shape[1]
        rows = [self._row("all", flat, self.sizes)]
        for k, stride in enumerate(self.strides):
            rows.append(self._row(f"stride {stride}", flat, self.sizes[level == k]))
        return {"anchors": _lists(anchors), "fit": fits, "rows": rows}

    def _row(self, name: str, flat: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
        values: list[float | None] = [None] * 3
        if len(sizes):
            fit = measure(flat, sizes, self.anchor_t)
            values = [fit.bpr, fit.aat, fit.mean_best]
        return {"name": name, **dict(zip(COLUMNS, (len(sizes), *values), strict=True))}

    def table(self) -> str:
        """The rows as text."""
        content = self.content()
        lines = [["anchors", *COLUMNS]]
        for name in ("before", "after") if self.choice.changed else ("before",):
            for row in content[name]["rows"]:
                lines.append([f"{name}, {row['name']}", *(_number(row[c]) for c in COLUMNS)])
        return aligned(lines)

    def yaml_line(self) -> str:
        """The anchors in use, to paste into a configuration."""
        return f"model: {{network: {{anchors: {_lists(self.choice.anchors)}}}}}"

    def save(self, folder: Path) -> None:
        """To anchors.json."""
        text = json.dumps(self.content(), indent=1)
        write_atomically(folder / "anchors.json", lambda file: file.write(text.encode()))

    def draw(self, path: Path) -> None:
        """Width and height of the labels, and both sets of anchors, to a PNG file."""
        count = len(self.sizes)
        shown = np.random.default_rng(0).choice(count, min(count, MOST_DRAWN), replace=False)
        with picture(path, 7.5, 7) as figure:
            axis = figure.add_subplot()
            axis.set(title=self.choice.reason, xlabel="width, px", ylabel="height, px")
            x, y = self.sizes[shown].T
            axis.scatter(x, y, s=4, color="0.7", label=f"labels ({count})")
            if self.choice.changed:
                x, y = self.before.reshape(-1, 2).T
                axis.scatter(x, y, marker="x", color=COLOURS[1], label="before")
            levels = zip(self.strides, self.choice.anchors, MARKS, strict=False)
            for stride, anchors, mark in levels:
                x, y = anchors.T
                label = f"in use, stride {stride}"
                axis.scatter(x, y, s=60, marker=mark, color=COLOURS[0], label=label)
            axis.set(xscale="log", yscale="log")
            for side in (axis.xaxis, axis.yaxis):
                side.set_major_formatter("{x:g}")
                side.set_minor_formatter("{x:g}")
            axis.tick_params(which="minor", labelsize=6)
            axis.legend(fontsize=8)


def _lists(anchors: np.ndarray) -> list[list[float]]:
    """(levels, A, 2) -> a list of 2 A numbers a level."""
    return anchors.reshape(len(anchors), -1).round(2).tolist()


def _number(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
