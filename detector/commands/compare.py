"""The command `compare`: runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from boltbox.detector.checkpoint.runs import claim, latest_fits, new_run
from boltbox.detector.report.charts import draw_panels, points
from boltbox.detector.report.folder import RunFiles
from boltbox.detector.report.html import Section, write_page
from boltbox.detector.report.table import aligned, number
from boltbox.detector.system.configuration import differences, flatten
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import common_folder, inside, print_fact, rank_zero_print

METRICS = ("mAP50-95", "mAP50", "P", "R", "coco/AP")
CURVES = ("val/mAP50-95", "val/mAP50", "lr/weight")  # columns of metrics.csv
EVALUATED = ("images", "objects", "split")  # the same for runs whose metrics can be compared


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
    files = [RunFiles(path) for path in dict.fromkeys(map(Path, runs))]
    files.sort(key=lambda each: -float(each.metrics.get("fitness", -1)))
    folder = common_folder([str(each.path) for each in files])
    by_name = {inside(str(each.path), folder): each for each in files}
    sections = [_options(by_name), _metrics(by_name)]
    for section in sections:
        for line in (section.title, *section.text, f"{aligned(section.table)}\n"):
            rank_zero_print(line)
    output = new_run("compare") if run is None else run
    claim(output, "compare")
    panels = {}
    for column in CURVES:
        panels[column] = {name: points(each.epochs, column) for name, each in by_name.items()}
    picture = output / "compare.png"
    if draw_panels(panels, picture):
        sections.append(Section("Curves", pictures=[picture]))
    page = output / "compare.html"
    write_page(page, f"Comparison: {', '.join(by_name)}", sections)
    print_fact("page", page)


def _options(runs: Mapping[str, RunFiles]) -> Section:
    """The options that differ, of those that were typed for one of the runs."""
    typed: set[str] = set()
    configs = []
    for run in runs.values():
        config = flatten(run.config)
        typed.update(run.changed or config)
        # the optimizer and its rates as the run chose them in its best epoch, unless they were
        # typed: for a resume after that epoch they may be others
        chosen = flatten(run.metrics.get("optim", {}), "model.optim.")
        configs.append(config | chosen | run.changed)
    rows = [["option", *runs]]
    for name, values in differences(configs).items():
        if name in typed:
            rows.append([name] + [str(value) for value in values])
    if len(rows) == 1:
        return Section("Options that differ", ["None."])
    return Section("Options that differ", table=rows)


def _metrics(runs: Mapping[str, RunFiles]) -> Section:
    rows = [["run", "epochs", "images", *METRICS, "training"]]
    for name, run in runs.items():
        row = [name, str(len(run.epochs) or "-"), str(run.metrics.get("images", "-"))]
        row += [number(run.metrics.get(metric)) for metric in METRICS]
        seconds = sum(value for _, value in points(run.epochs, "seconds"))
        row.append(f"{seconds:.0f} s" if run.epochs else "-")
        rows.append(row)
    text = ["The best run first."]
    evaluated = {tuple(map(run.metrics.get, EVALUATED)) for run in runs.values() if run.metrics}
    if len(evaluated) > 1:
        text.append("warning: not evaluated on the same images; these metrics are not comparable")
    return Section("Metrics", text, rows)
