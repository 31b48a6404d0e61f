"""The metrics of an evaluation as a table and as a plain dictionary."""

import math
from typing import Any

import numpy as np

from boltbox.detector.evaluation.class_metrics import ClassMetrics
from boltbox.detector.evaluation.metrics import Result


def result_json(result: Result, names: list[str]) -> dict[str, Any]:
    """Everything that metrics.json says of an evaluation, with a row for each class that has
    objects; a metric that does not exist (no large objects, say) is null."""
    m = result.by_class
    rows = [
        {
            "name": names[c],
            "objects": int(m.objects[i]),
            "P": float(m.precision[i]),
            "R": float(m.recall[i]),
            "mAP50": float(m.ap[i, 0]),
            "mAP50-95": float(m.ap[i].mean()),
            "coco/AP": float(result.coco_by_class[c]),
        }
        for i, c in enumerate(m.classes.tolist())
    ]
    counts = {"images": result.images, "objects": sum(row["objects"] for row in rows)}
    return _plain(
        {**result.summary, **counts, "best_confidence": m.best_confidence, "per_class": rows}
    )


def class_table(content: dict[str, Any]) -> str:
    """The table that is printed of what `result_json` gave: all classes together, then one by
    one."""
    columns = ("P", "R", "mAP50", "mAP50-95", "coco/AP")
    everything, rows = {"name": "all", **content}, content["per_class"]
    width = max(len(r["name"]) for r in [everything, *rows])
    lines = [f"{'class':<{width}}  {'objects':>8}" + "".join(f"{c:>10}" for c in columns)]
    for r in [everything, *(rows if len(rows) > 1 else [])]:
        values = ("-" if r[c] is None else f"{r[c]:.3f}" for c in columns)
        lines.append(
            f"{r['name']:<{width}}  {r['objects']:>8}" + "".join(f"{x:>10}" for x in values)
        )
    return "\n".join(lines)


def largest_classes(metrics: ClassMetrics, most: int) -> list[int]:
    """Rows of the classes with most objects, in the order of the classes."""
    return sorted(np.argsort(-metrics.objects, kind="stable")[:most].tolist())


def confusions(result: Result, names: list[str], most: int = 10_000) -> list[tuple[str, str, int]]:
    """Cells of the confusion matrix as (true class, predicted class, count), most frequent first:
    those that are not 0 and the diagonal. An object that was not found is predicted as background,
    a detection of nothing is truly background."""
    everything, confusion = [*names, "background"], result.confusion
    counts = {(c, c): 0 for c in range(len(everything))}
    counts |= dict(
        zip(map(tuple, confusion.cells.tolist()), confusion.counts.tolist(), strict=True)
    )
    order = sorted(counts, key=lambda cell: (-counts[cell], cell))[:most]
    return [
        (everything[true], everything[predicted], counts[predicted, true])
        for predicted, true in order
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
