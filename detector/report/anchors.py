"""A report on the anchors: how well they fit, by level."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boltbox.detector.model.anchors import Choice, measure, side_ratios
from boltbox.detector.model.head import Head
from boltbox.detector.report.table import aligned, number
from boltbox.detector.system.atomic_file import write_atomically

COLUMNS = ("labels", "BPR", "AAT", "fitness")


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
        head = {name: getattr(self.choice, name) for name in ("changed", "reason")}
        head |= {"image_size": self.image_size, "anchor_t": self.anchor_t}
        after = {"after": self._described(self.choice.anchors)} if self.choice.changed else {}
        return {**head, "before": self._described(self.before), **after}

    def _described(self, anchors: np.ndarray) -> dict[str, Any]:
        """The anchors, and how well they fit: all labels, and by level (a label belongs to the
        level of its best anchor)."""
        flat = anchors.reshape(-1, 2)
        fits = {"labels": measure(flat, self.sizes, self.anchor_t)._asdict()}
        if self.seen is not None and len(self.seen):
            fits["augmented"] = measure(flat, self.seen, self.anchor_t)._asdict()
        level = side_ratios(self.sizes, flat).argmax(1) // anchors.shape[1]
        groups = {f"stride {s}": self.sizes[level == k] for k, s in enumerate(self.strides)}
        rows = []
        for name, sizes in {"all": self.sizes, **groups}.items():
            fit = measure(flat, sizes, self.anchor_t)[:3] if len(sizes) else [None] * 3
            rows.append(dict(zip(("name", *COLUMNS), (name, len(sizes), *fit), strict=True)))
        return {"anchors": _lists(anchors), "fit": fits, "rows": rows}

    def table(self) -> str:
        """The rows as text."""
        return aligned(anchor_rows(self.content()))

    def yaml_line(self) -> str:
        """The anchors in use, to paste into a configuration."""
        return f"model: {{network: {{anchors: {_lists(self.choice.anchors)}}}}}"

    def save(self, folder: Path) -> None:
        """To anchors.json."""
        text = json.dumps(self.content(), indent=1)
        write_atomically(folder / "anchors.json", text)


def _lists(anchors: np.ndarray) -> list[list[float]]:
    """(levels, A, 2) -> a list of 2 A numbers a level."""
    return anchors.reshape(len(anchors), -1).round(2).tolist()


def anchor_rows(content: Mapping[str, Any]) -> list[list[str]]:
    """The cells of a table of what anchors.json holds, the first row is the header."""
    lines = [["anchors", *COLUMNS]]
    for when in ("before", "after"):
        for name, labels, *fit in map(dict.values, content.get(when, {}).get("rows", ())):
            lines.append([f"{when}, {name}", str(labels), *map(number, fit)])
    return lines
