"""A report on the anchors: how well they fit, by level."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from boltbox.detector.model.anchors import Choice, measure, side_ratios
from boltbox.detector.model.head import Head
from boltbox.detector.report.table import number

COLUMNS = ("labels", "BPR", "AAT", "fitness")


def no_anchors(head: Head) -> str:
    """What is said instead of a report."""
    return f"anchors: {type(head).__name__} has none, so there is nothing to fit to the labels"


def anchor_report(
    before: np.ndarray,
    choice: Choice,
    strides: Sequence[int],
    sizes: np.ndarray,
    seen: np.ndarray,
    anchor_t: float,
) -> dict[str, Any]:
    """Anchors before and after the choice and how well they fit, as plain types, for anchors.json.

    Args:
        before: (levels, A, 2) pixels.
        choice: what was decided.
        strides: of the levels.
        sizes: (n, 2) pixels of the network's input, of the training labels; they are reported by
            level too, where a label belongs to that of its best anchor.
        seen: (m, 2) sizes after the augmentation; none if nobody asked.
    """

    def described(anchors: np.ndarray) -> dict[str, Any]:
        flat = anchors.reshape(-1, 2)
        level = side_ratios(sizes, flat).argmax(1) // anchors.shape[1]
        groups = {"all": sizes, **({"augmented": seen} if len(seen) else {})}
        groups |= {f"stride {s}": sizes[level == k] for k, s in enumerate(strides)}
        rows = []
        for name, of_group in groups.items():
            fit = measure(flat, of_group, anchor_t)[:3] if len(of_group) else [None] * 3
            rows.append(dict(zip(("name", *COLUMNS), (name, len(of_group), *fit), strict=True)))
        return {"anchors": _lists(anchors), "rows": rows}

    content = {"changed": choice.changed, "reason": choice.reason, "before": described(before)}
    if choice.changed:
        content["after"] = described(choice.anchors)
    yaml = f"model: {{network: {{anchors: {_lists(choice.anchors)}}}}}"
    return {**content, "anchor_t": anchor_t, "yaml": yaml}


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
