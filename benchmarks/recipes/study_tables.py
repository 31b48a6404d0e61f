"""The tables of a study."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.recipes.verdict import Runs, Verdict, judge

Study = Mapping[str, Runs]  # recipe -> runs; the first recipe is what the others are compared with


def scores(study: Study) -> list[list[str]]:
    """Header and a row a recipe: mean and spread of AP over seeds by data set, macro mean,
    parameters."""
    sets = list(next(iter(study.values())))
    rows = [["recipe", *sets, "mean", "parameters"]]
    for recipe, runs in study.items():
        cells = []
        means = []
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
