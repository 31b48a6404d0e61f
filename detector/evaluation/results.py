"""The metrics of an evaluation as a table and as a plain dictionary."""

import math
from typing import Any

from boltbox.detector.evaluation.metrics import Result

COLUMNS = ("P", "R", "mAP50", "mAP50-95", "coco/AP")


def result_json(result: Result, names: list[str]) -> dict[str, Any]:
    """Everything that metrics.json says of an evaluation, with a row for each class that has
    objects; a metric that does not exist (no large objects, say) is null."""
    m = result.by_class
    values = m.precision, m.recall, m.ap[:, 0], m.ap.mean(1), result.coco_by_class[m.classes]
    rows = [
        {"name": names[c], "objects": objects, **_plain(dict(zip(COLUMNS, numbers, strict=True)))}
        for c, objects, *numbers in zip(m.classes, m.objects.tolist(), *values, strict=True)
    ]
    counts = {"images": len(result.indices), "objects": int(m.objects.sum())}
    everything = {**_plain(result.summary), **counts, "best_confidence": m.best_confidence}
    return {**everything, "per_class": rows}


def _plain(numbers: dict[str, float]) -> dict[str, float | None]:
    """Without NaN, which JSON does not have."""
    return {name: float(v) if math.isfinite(v) else None for name, v in numbers.items()}


def class_table(content: dict[str, Any]) -> str:
    """The table that is printed of what `result_json` gave: all classes together, then one by
    one."""
    everything, rows = {"name": "all", **content}, content["per_class"]
    width = max(len(r["name"]) for r in [everything, *rows])
    lines = [f"{'class':<{width}}  {'objects':>8}" + "".join(f"{c:>10}" for c in COLUMNS)]
    for r in [everything, *(rows if len(rows) > 1 else [])]:
        values = ("-" if r[c] is None else f"{r[c]:.3f}" for c in COLUMNS)
        lines.append(
            f"{r['name']:<{width}}  {r['objects']:>8}" + "".join(f"{x:>10}" for x in values)
        )
    return "\n".join(lines)
