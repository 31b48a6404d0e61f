"""Which of several recipes trains better detectors: trainings over data sets and seeds, compared in
pairs.

    python -m benchmarks.recipes --data bccd aquarium/data.yaml --seeds 0 1 2 --jobs 2 --folder
    runs/recipes \\
        --recipe "yolov5=" --recipe "adamw=--model.optim.optimizer AdamW --model.optim.lr0 0.001" \\
        -- --trainer.max_epochs 30 --data.image_size 320 --model.start.weights yolov5n.pt

A recipe is a name and options of `fit`; the first is what the others are compared with. Options
after -- are for all. Each training is a normal `fit` with a folder of its own. The epoch is chosen
on val; figures are those of the test split where a data set has one, else those of val. The command
can be interrupted and repeated: a finished training is not repeated, an interrupted one is resumed.
Its figures: COCO's AP, gains over the first recipe on the same data set and seed, the interval of
their mean by a bootstrap over data sets and seeds, and when a recipe passed the first one's last
value. study.md has the tables, study.csv a row per training; benchmarks/recipes.csv is made of such
files.
"""

import argparse
import shlex
import sys
from pathlib import Path

from benchmarks.recipes.study import run_all
from benchmarks.recipes.study_tables import Study, gains, scores
from benchmarks.recipes.subset import write_subset
from benchmarks.recipes.training import Training
from benchmarks.tables import markdown
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.csv_table import write_table
from boltbox.detector.system.errors import InputError


def plan(given: argparse.Namespace, common: list[str]) -> list[Training]:
    """All trainings, a round of all data sets and recipes for each seed.

    Raises:
        InputError: two data sets or recipes of one name.
    """
    recipes = dict(_recipe(text) for text in given.recipe)
    sets = {}
    for source in given.data:
        path = Path(source)
        name = path.parent.name if path.suffix in (".yaml", ".yml") else path.name
        sets[name] = source if source == "demo" else str(path.resolve())
        for images in given.images or []:
            sets[f"{name}-{images}"] = str(
                write_subset(source, images, given.folder / "subsets" / f"{name}-{images}")
            )
        if given.images:
            del sets[name]
    if len(recipes) < len(given.recipe) or len(sets) < len(given.data):
        raise InputError(
            "two recipes, or two data sets, have the same name (that of a data.yaml is its"
            " folder's)"
        )
    return [
        Training(
            source,
            name,
            recipe,
            tuple(words),
            tuple(common),
            seed,
            given.folder / name / recipe / str(seed),
        )
        for seed in given.seeds
        for name, source in sets.items()
        for recipe, words in recipes.items()
    ]


def _recipe(text: str) -> tuple[str, list[str]]:
    name, sign, words = text.partition("=")
    if not sign or not name.replace("-", "").replace("_", "").isalnum():
        raise InputError(
            f'--recipe {text}: give NAME=OPTIONS, as "adam=--model.optim.optimizer Adam"'
        )
    return name, shlex.split(words)


def study_of(trainings: list[Training]) -> Study:
    """recipe -> data set -> seed -> figures, of those that are done."""
    found: dict[str, dict[str, dict[int, object]]] = {t.recipe: {} for t in trainings}
    for t in trainings:
        own = found[t.recipe].setdefault(t.name, {})
        if t.is_done():
            own[t.seed] = t.figures()
    return found  # type: ignore[return-value]


def main() -> None:
    words = sys.argv[1:]
    common = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", required=True, help="data sets, as for data.dataset")
    parser.add_argument(
        "--images", nargs="+", type=int, help="so many training images of each only"
    )
    parser.add_argument(
        "--recipe",
        action="append",
        required=True,
        help="NAME=OPTIONS of fit; the first is compared with",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="for the runs, study.md and study.csv",
    )
    given = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    try:
        trainings = plan(given, common)

        def report(training: Training) -> None:
            done = sum(t.is_done() for t in trainings)
            print(
                f"{done} of {len(trainings)}: {training}: AP {training.figures().score:.4f}",
                flush=True,
            )

        run_all(trainings, given.jobs, report)
    except InputError as e:
        raise SystemExit(f"error: {e}") from None
    study = study_of(trainings)
    command = f"python -m benchmarks.recipes {shlex.join(words)}"
    lines = [
        f"    {command}",
        "",
        "AP in hundredths.",
        "",
        *markdown(gains(study)),
        "",
        *markdown(scores(study)),
        "",
    ]
    text = "\n".join(lines)
    print(f"\n{text}")
    write_atomically(given.folder / "study.md", lambda file: file.write(text.encode()))
    write_table(given.folder / "study.csv", [training.row() for training in trainings])
    print(f"tables: {given.folder / 'study.md'}")


if __name__ == "__main__":
    main()
