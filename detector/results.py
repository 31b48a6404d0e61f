"""The figures of an evaluation as a table and as a plain dictionary."""

import math
from typing import Any

import numpy as np

from detector.metrics import Result


def class_rows(result: Result, names: list[str]) -> list[dict[str, Any]]:
    """A row for each class that has objects."""
    f = result.figures
    return [
        {
            "name": names[c],
            "objects": int(f.objects[i]),
            "P": float(f.precision[i]),
            "R": float(f.recall[i]),
            "mAP50": float(f.ap[i, 0]),
            "mAP50-95": float(f.ap[i].mean()),
            "coco/AP": float(result.coco_by_class[c]),
        }
        for i, c in enumerate(f.classes.tolist())
    ]


def class_table(result: Result, names: list[str]) -> str:
    """The table that is printed: all classes together, then one by one."""
    columns = ("P", "R", "mAP50", "mAP50-95", "coco/AP")
    rows = class_rows(result, names)
    everything = {"name": "all", "objects": int(np.sum(result.figures.objects)), **result.summary}
    width = max(len(r["name"]) for r in [everything, *rows])
    lines = [f"{'class':<{width}}  {'objects':>8}" + "".join(f"{c:>10}" for c in columns)]
    for r in [everything, *(rows if len(rows) > 1 else [])]:
        lines.append(f"{r['name']:<{width}}  {r['objects']:>8}" + "".join(f"{r[c]:>10.3f}" for c in columns))
    return "\n".join(lines)


def result_json(result: Result, names: list[str]) -> dict[str, Any]:
    """Everything that metrics.json says of an evaluation; a figure that does not exist (no large objects, say) is null."""
    content = {**result.summary, "images": result.images, "per_class": class_rows(result, names)}
    content["best_confidence"] = result.figures.best_confidence
    return _plain(content)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
