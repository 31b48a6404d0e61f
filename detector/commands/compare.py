"""The command `compare`: runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from boltbox.detector.checkpoint.runs import new_run
from boltbox.detector.report.charts import draw_panels, loss_names, loss_title, points
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import Section, write_page
from boltbox.detector.report.table import aligned, number
from boltbox.detector.system.configuration import differences
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

METRICS = ("fitness", "mAP50-95", "mAP50", "P", "R", "coco/AP")
CURVES = {  # title: column of metrics.csv; the losses come after
    "mAP50-95": "val/mAP50-95",
    "mAP50": "val/mAP50",
    "Precision": "val/P",
    "Recall": "val/R",
    "Learning rate of weights": "lr/weight",
}


def compare(runs: list[str], run: str | None = None) -> None:
    """What differs between runs: options first, then metrics, then curves; on the screen, as
    compare.html and compare.png.

    Args:
        runs: Folders of fit, validate or test, as runs/fit-1 runs/fit-2.
        run: Folder to write into; default: runs/compare-NUMBER.
    """
    if len({Path(r).resolve() for r in runs}) < 2:
        raise InputError("compare needs the folders of two runs at least, as runs/fit-1 runs/fit-2")
    found = _by_name([RunFiles.read(path) for path in dict.fromkeys(map(Path, runs))])
    changed = differences([r.config for r in found.values()])
    options = [["option", *found], *([name, *map(str, row)] for name, row in changed.items())]
    metrics, notes = _metrics(found), []
    seen = [
        (*map(r.metrics.get, ("images", "objects", "split")), r.config["data"]["dataset"])
        for r in found.values()
        if r.metrics
    ]
    if len(set(seen)) > 1:
        notes = ["the runs were not evaluated on the same images; their metrics are not comparable"]
    rank_zero_print(f"{aligned(options) if changed else 'the options are the same'}\n")
    rank_zero_print("\n".join([aligned(metrics), *(f"warning: {line}" for line in notes)]))
    folder = Path(run) if run else new_run("compare")
    picture, page = folder / "compare.png", folder / "compare.html"
    sections = [
        Section("Options that differ", () if changed else ["None."], options if changed else ()),
        Section("Metrics", ["The best run first.", *notes], metrics),
    ]
    losses = loss_names([row for r in found.values() for row in r.epochs])
    columns = {**CURVES, **{f"{loss_title(n)}, validation": f"val/{n}" for n in losses}}
    panels = {
        title: {name: points(r.epochs, column) for name, r in found.items()}
        for title, column in columns.items()
    }
    if draw_panels(panels, picture):
        sections.append(Section("Curves", pictures=[picture]))
    write_page(page, f"Comparison: {', '.join(found)}", sections)
    rank_zero_print(f"\npage: {page}")


def _by_name(runs: list[RunFiles]) -> dict[str, RunFiles]:
    """The best by fitness first; runs whose folders have the same name are named by their path."""
    runs = sorted(runs, key=lambda r: -float(r.metrics.get("fitness", -1)))
    short = [r.path.resolve().name for r in runs]
    return {
        name if short.count(name) == 1 else str(r.path): r
        for name, r in zip(short, runs, strict=True)
    }


def _metrics(runs: Mapping[str, RunFiles]) -> list[list[str]]:
    """Header and a row a run."""
    rows = [["run", "command", "epochs", "images", *METRICS, "training"]]
    for name, r in runs.items():
        seconds = sum(y for _, y in points(r.epochs, "seconds"))
        head = [name, str(r.metrics.get("command", "-")), str(len(r.epochs) or "-")]
        metrics = [number(r.metrics.get(column)) for column in METRICS]
        rows.append([*head, str(r.metrics.get("images", "-")), *metrics, f"{seconds:.0f} s"])
    return rows
