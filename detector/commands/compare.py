"""The command `compare`: runs side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from boltbox.detector.checkpoint.runs import claim, latest_fits, new_run, path_from, start_of
from boltbox.detector.report.charts import draw_panels, loss_names, points
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import Section, write_page
from boltbox.detector.report.table import aligned, number
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.file_names import common_folder, inside
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print

METRICS = ("fitness", "mAP50-95", "mAP50", "P", "R", "coco/AP")
EVERYWHERE = ("data.", "model.", "trainer.precision")  # options that all commands use
# of metrics.csv, with a panel each; the losses come after
COLUMNS = ("val/mAP50-95", "val/mAP50", "val/P", "val/R", "lr/weight")


def compare(runs: list[str], run: Path | None = None) -> None:
    """What differs between runs: options first, then metrics, then curves; on the screen, as
    compare.html and compare.png.

    Args:
        runs: Folders of fit, validate or test, as runs/fit-1 runs/fit-2; default: the two most
            recent fits.
        run: Folder to write into; default: runs/compare-NUMBER.
    """
    runs = runs or latest_fits(2)
    if len({Path(r).resolve() for r in runs}) < 2:
        raise InputError("compare needs the folders of two runs at least, as runs/fit-1 runs/fit-2")
    files = [RunFiles.read(path) for path in dict.fromkeys(map(Path, runs))]
    files.sort(key=lambda r: -float(r.metrics.get("fitness", -1)))
    folder = common_folder([str(r.path) for r in files])
    found = {inside(str(r.path), folder): r for r in files}
    changed = _given(list(found.values()))
    options = [["option", *found], *([name, *map(str, row)] for name, row in changed.items())]
    if not changed:
        options = []
    evaluated = {_evaluated(r) for r in found.values() if r.metrics}
    warning = "warning: not evaluated on the same images; these metrics are not comparable"
    notes = ["The best run first.", *([warning] if len(evaluated) > 1 else [])]
    sections = [
        Section("Options that differ", () if changed else ["None."], options),
        Section("Metrics", notes, _metrics(found)),
    ]
    for section in sections:
        lines = section.title, *section.text, aligned(section.table)
        rank_zero_print("\n".join(lines) + "\n")
    output = run or new_run("compare")
    claim(output, "compare")
    picture, page = output / "compare.png", output / "compare.html"
    losses = loss_names([row for r in found.values() for row in r.epochs])
    columns = [*COLUMNS, *(f"val/{name}" for name in losses)]
    panels = {
        column: {name: points(r.epochs, column) for name, r in found.items()} for column in columns
    }
    if draw_panels(panels, picture):
        sections.append(Section("Curves", pictures=[picture]))
    write_page(page, f"Comparison: {', '.join(found)}", sections)
    print_fact("page", page)


def _given(runs: Sequence[RunFiles]) -> dict[str, list[object]]:
    """By name the values of the options that differ, of those that somebody gave for one of the
    runs. What only a training uses is not compared with a validation."""
    given: set[str] = set()
    for run in runs:
        given.update(run.changed or flatten(run.config))
    rows: dict[str, list[object]] = {}
    for name, values in differences([run.config for run in runs]).items():
        compared = values
        if "." in name and not name.startswith(EVERYWHERE):
            compared = [v for v, run in zip(values, runs, strict=True) if not run.is_validation]
        if name in given and any(value != compared[0] for value in compared):
            rows[name] = values
    return rows


def _evaluated(run: RunFiles) -> tuple[object, ...]:
    """What the metrics of a run are of."""
    data = run.config.get("data") or {}
    images = map(run.metrics.get, ("images", "objects", "split"))
    dataset = path_from(start_of(run.path), str(data.get("dataset")))
    return *images, os.path.abspath(dataset), data.get("single_class")


def _metrics(runs: Mapping[str, RunFiles]) -> list[list[str]]:
    """Header and a row a run."""
    rows = [["run", "command", "epochs", "images", *METRICS, "training"]]
    for name, r in runs.items():
        seconds = sum(y for _, y in points(r.epochs, "seconds"))
        head = [name, str(r.metrics.get("command", "-")), str(len(r.epochs) or "-")]
        metrics = [number(r.metrics.get(column)) for column in METRICS]
        rows.append([*head, str(r.metrics.get("images", "-")), *metrics, f"{seconds:.0f} s"])
    return rows
