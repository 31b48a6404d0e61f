"""The command `compare`: runs side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
COLUMNS = ["val/mAP50-95", "val/mAP50", "val/P", "val/R", "lr/weight"]
DIFFERENT_DATA = "warning: not evaluated on the same images; these metrics are not comparable"


def compare(runs: list[str], run: Path | None = None) -> None:
    """What differs between runs: options first, then metrics, then curves; on the screen, as
    compare.html and compare.png.

    Args:
        runs: Folders of fit, validate or test, as runs/fit-1 runs/fit-2; default: the two most
            recent fits.
        run: Folder to write into; default: runs/compare-NUMBER.
    """
    if not runs:
        runs = latest_fits(2)
    if len({Path(path).resolve() for path in runs}) < 2:
        raise InputError("compare needs the folders of two runs at least, as runs/fit-1 runs/fit-2")
    files = [RunFiles.read(path) for path in dict.fromkeys(map(Path, runs))]
    files.sort(key=lambda each: -float(each.metrics.get("fitness", -1)))
    folder = common_folder([str(each.path) for each in files])
    by_name = {inside(str(each.path), folder): each for each in files}
    sections = [_options(by_name), _metrics(by_name)]
    for section in sections:
        for line in (section.title, *section.text, f"{aligned(section.table)}\n"):
            rank_zero_print(line)
    output = new_run("compare") if run is None else run
    claim(output, "compare")
    if _draw_curves(by_name, output / "compare.png"):
        sections.append(Section("Curves", pictures=[output / "compare.png"]))
    page = output / "compare.html"
    write_page(page, f"Comparison: {', '.join(by_name)}", sections)
    print_fact("page", page)


def _options(runs: Mapping[str, RunFiles]) -> Section:
    """The options that differ, of those that were typed for one of the runs. A validation is not
    compared by what only a training uses."""
    typed: set[str] = set()
    for run in runs.values():
        typed.update(run.changed or flatten(run.config))
    rows = [["option", *runs]]
    for name, values in differences([run.config for run in runs.values()]).items():
        compared = values
        if "." in name and not name.startswith(EVERYWHERE):
            compared = []
            for value, run in zip(values, runs.values(), strict=True):
                if not run.is_validation:
                    compared.append(value)
        if name in typed and any(value != compared[0] for value in compared):
            rows.append([name] + [str(value) for value in values])
    if len(rows) == 1:
        return Section("Options that differ", ["None."])
    return Section("Options that differ", table=rows)


def _metrics(runs: Mapping[str, RunFiles]) -> Section:
    rows = [["run", "command", "epochs", "images", *METRICS, "training"]]
    for name, run in runs.items():
        row = [name, str(run.metrics.get("command", "-")), str(len(run.epochs) or "-")]
        row.append(str(run.metrics.get("images", "-")))
        row += [number(run.metrics.get(column)) for column in METRICS]
        seconds = sum(value for _, value in points(run.epochs, "seconds"))
        row.append(f"{seconds:.0f} s")
        rows.append(row)
    text = ["The best run first."]
    if len({_evaluated(run) for run in runs.values() if run.metrics}) > 1:
        text.append(DIFFERENT_DATA)
    return Section("Metrics", text, rows)


def _evaluated(run: RunFiles) -> tuple[object, ...]:
    """What a run was evaluated on: the same for runs whose metrics can be compared."""
    data = run.config.get("data")
    if data is None:
        data = {}
    dataset = path_from(start_of(run.path), str(data.get("dataset")))
    return (
        run.metrics.get("images"),
        run.metrics.get("objects"),
        run.metrics.get("split"),
        os.path.abspath(dataset),
        data.get("single_class"),
    )


def _draw_curves(runs: Mapping[str, RunFiles], path: Path) -> bool:
    """A panel for each column of metrics.csv, a line for each run; False: there are none."""
    epochs = []
    for run in runs.values():
        epochs += run.epochs
    panels = {}
    for column in COLUMNS + [f"val/{name}" for name in loss_names(epochs)]:
        panels[column] = {name: points(run.epochs, column) for name, run in runs.items()}
    return draw_panels(panels, path)
