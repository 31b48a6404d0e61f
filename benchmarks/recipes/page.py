"""What a study found, as Markdown for the screen and as one HTML page with curves."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.recipes.verdict import Runs, Verdict, judge, mean_curve
from boltbox.detector.report.charts import add_lines, picture

Study = Mapping[str, Runs]  # recipe -> runs; the first recipe is what the others are compared with


def scores(study: Study) -> list[list[str]]:
    """Header and a row a recipe: mean and spread of AP over seeds by data set, macro mean,
    parameters."""
    sets = list(next(iter(study.values())))
    rows = [["recipe", *sets, "mean", "parameters"]]
    for recipe, runs in study.items():
        cells, means = [], []
        for name in sets:
            values = [100 * run.score for run in runs.get(name, {}).values()]
            means += [sum(values) / len(values)] if values else []
            cells.append(
                f"{means[-1]:.1f} ({min(values):.1f} to {max(values):.1f})" if values else "-"
            )
        parameters = max(
            (run.parameters for own in runs.values() for run in own.values()), default=0
        )
        mean = f"{sum(means) / len(means):.2f}" if len(means) == len(sets) else "-"
        rows.append([recipe, *cells, mean, f"{parameters:,}"])
    return rows


def verdicts(study: Study) -> dict[str, Verdict]:
    """Each recipe but the first against the first, as far as both have been trained."""
    base, *others = study
    found = {}
    for recipe in others:
        if any(
            study[base].get(name, {}).keys() & runs.keys() for name, runs in study[recipe].items()
        ):
            found[recipe] = judge(study[base], study[recipe])
    return found


def gains(study: Study) -> list[list[str]]:
    """Header and a row a recipe: points of AP gained on the first one, by data set and in the mean,
    with the interval."""
    sets = list(next(iter(study.values())))
    rows = [
        [
            "against " + next(iter(study)),
            *sets,
            "mean",
            "95 % interval",
            "worst set",
            "parameters",
            "passes it after",
        ]
    ]
    for recipe, v in verdicts(study).items():
        cells = [f"{v.gains[name]:+.1f}" if name in v.gains else "-" for name in sets]
        low, high = v.interval
        reached = [p for p in v.passed.values() if p]
        after = "-"
        if reached:
            epochs, seconds = (sum(column) / len(reached) for column in zip(*reached, strict=True))
            after = (
                f"{epochs:.0%} of epochs, {seconds:.0%} of seconds ({len(reached)} of"
                f" {len(v.passed)} sets)"
            )
        worst = f"{v.worst} {v.gains[v.worst]:+.1f}"
        rows.append(
            [
                recipe,
                *cells,
                f"{v.macro:+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                worst,
                f"{v.parameters:.3f}",
                after,
            ]
        )
    return rows


def html(study: Study, title: str, command: str) -> bytes:
    """The tables, and for each data set the mean curves of all recipes over epochs and over
    seconds."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<pre>{escape(command)}</pre>",
        _table(gains(study)),
        _table(scores(study)),
    ]
    for name in next(iter(study.values())):
        parts.append(
            f"<h2>{escape(name)}</h2><img src='data:image/png;base64,{_curves(study, name)}'"
            " alt='AP on val'>"
        )
    style = (
        "body{font:15px sans-serif;margin:2em}td,th{padding:.2em"
        " .8em;text-align:right}td:first-child{text-align:left}"
    )
    page = (
        "<!doctype html><meta"
        f" charset=utf-8><title>{escape(title)}</title><style>{style}</style>{''.join(parts)}"
    )
    return page.encode()


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head.replace('td>', 'th>')}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def _curves(study: Study, name: str) -> str:
    curves = {
        recipe: mean_curve(list(runs[name].values()))
        for recipe, runs in study.items()
        if runs.get(name)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curves.png"
        with picture(path, 12, 4) as figure:
            for k, (column, label) in enumerate(((0, "epochs"), (1, "seconds"))):
                axis = figure.add_subplot(1, 2, k + 1)
                lines = {
                    recipe: [(row[column], row[2]) for row in curve.tolist()]
                    for recipe, curve in curves.items()
                }
                add_lines(axis, label, lines, legend=len(lines) > 1)
                axis.set_title("COCO's AP on val, mean over seeds", fontsize=11)
        return base64.b64encode(path.read_bytes()).decode()
