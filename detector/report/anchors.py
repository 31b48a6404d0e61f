"""A report on the anchors: how well they fit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from boltbox.detector.model.anchors import Choice, measure
from boltbox.detector.model.head import Head
from boltbox.detector.report.table import number

COLUMNS = ("labels", "BPR", "AAT", "fitness")


def no_anchors(head: Head) -> str:
    """What is printed instead of a report.

    Args:
        head: That has none.
    """
    return f"anchors: {type(head).__name__} has none, so there is nothing to fit to the labels"


def anchor_report(
    before: np.ndarray,
    choice: Choice,
    sizes: np.ndarray,
    seen: np.ndarray,
    anchor_t: float,
) -> dict[str, Any]:
    """Anchors before and after the choice and how well they fit, as plain types, for anchors.json.

    Args:
        before: (levels, A, 2) pixels.
        choice: What was decided.
        sizes: (n, 2) pixels of the network's input, of the training labels.
        seen: (m, 2) sizes after the augmentation; none if they were not measured.
        anchor_t: Maximum ratio of the sides of a label and an anchor that fits it.

    Returns:
        The content of anchors.json.
    """

    def describe(anchors: np.ndarray) -> dict[str, Any]:
        rows = []
        for name, group in (("all", sizes), ("augmented", seen)):
            if len(group):
                fit = measure(anchors.reshape(-1, 2), group, anchor_t)
                values = (len(group), fit.bpr, fit.aat, fit.fitness)
                rows.append({"name": name} | dict(zip(COLUMNS, values, strict=True)))
        return {"anchors": _as_lists(anchors), "rows": rows}

    content = {"changed": choice.changed, "reason": choice.reason, "before": describe(before)}
    if choice.changed:
        content["after"] = describe(choice.anchors)
    content["anchor_t"] = anchor_t
    content["yaml"] = f"model: {{network: {{anchors: {_as_lists(choice.anchors)}}}}}"
    return content


def _as_lists(anchors: np.ndarray) -> list[list[float]]:
    """(levels, A, 2) -> a list of 2 A numbers per level."""
    return anchors.reshape(len(anchors), -1).round(2).tolist()


def anchor_rows(content: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows of a table of what anchors.json holds.

    Args:
        content: Of anchors.json.

    Returns:
        Rows of cells.
    """
    table = [["anchors", *COLUMNS]]
    for when in ("before", "after"):
        for row in content.get(when, {}).get("rows", ()):
            table.append([f"{when}, {row['name']}", str(row["labels"])])
            table[-1] += [number(row[column]) for column in COLUMNS[1:]]
    return table
