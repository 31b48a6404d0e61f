"""Which of several recipes trains better detectors: trainings over datasets and seeds, in pairs.

    python -m benchmarks.recipes --data bccd aquarium/data.yaml --seeds 0 1 2 --jobs 2 --folder runs/recipes \\
        --recipe "yolov5=--config configs/yolov5.yaml" --recipe "default=" \\
        -- --trainer.max_epochs 30 --data.image_size 320 --model.start.weights yolov5n.pt

A recipe is a name and options of `fit`; the others are compared with the first. Options after --
are for all. The epoch is chosen on val; scores are on test if the dataset has one, otherwise on
val. A repeated command skips trainings that are done and resumes those that were interrupted.
study.md gets the tables, study.csv a row per training; benchmarks/recipes.csv is made of such files.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import markdown
from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.commands.doctor.repair import write_dataset
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.csv_table import read_table, write_table
from boltbox.detector.system.operating_system import available_cores

ROOT = Path(__file__).parents[1]
METRIC = "coco/AP"
SAMPLES = 10_000  # of the bootstrap


def figures(source: str, options: list[str], folder: Path, threads: int) -> dict[str, str | float]:
    """Train or resume in a run folder, and evaluate on the test split if there is one.

    Args:
        source: As for data.dataset.
        options: Of `fit`.
        folder: Of the run.
        threads: Of each process.

    Returns:
        The split and its score; the seconds so far and the AP on val, by epoch.
    """
    claim(folder, "fit")
    resume = ["--run", str(folder), "--ckpt_path", "auto"]
    run("fit", options + resume, folder, threads)
    evaluated = folder
    if "test" in DatasetFile.read(source).splits:
        evaluated = folder / "test"
        best = folder / "checkpoints/best.ckpt"
        line = ["--ckpt_path", str(best), "--run", str(evaluated), "--trust_parts", "true"]
        run("test", line, folder, threads)
    metrics = json.loads((evaluated / "metrics.json").read_text())
    epochs = [row for row in read_table(folder / "metrics.csv") if row[f"val/{METRIC}"]]
    seconds = accumulate(float(row["seconds"]) for row in epochs)
    return {
        "split": metrics["split"],
        "score": metrics[METRIC],
        "seconds": " ".join(f"{second:.1f}" for second in seconds),
        "AP": " ".join(row[f"val/{METRIC}"] for row in epochs),
    }


def run(command: str, options: list[str], folder: Path, threads: int) -> None:
    """A command of boltbox with its log in the folder."""
    log = folder / f"{command}.log"
    line = [sys.executable, str(ROOT / "cli.py"), command, *options]
    line += ["--trainer.enable_progress_bar", "false"]
    variables = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with log.open("ab") as file:
        code = subprocess.run(line, env=variables, stdout=file, stderr=file).returncode
    if code:
        raise SystemExit(f"error: {command} ended with code {code} ({log})")


def write_subset(source: str, images: int, folder: Path) -> Path:
    """A data.yaml in `folder` with so many training images, and all of the other splits.

    The hash of their names decides which: a smaller subset is part of each larger one.
    """
    dataset = DatasetFile.read(source, needs_val=True)
    splits = {}
    for name in dataset.splits:
        split = dataset.open(name)
        splits[name] = list(zip(split.files, split.labels, strict=True))
    train = splits["train"]
    if len(train) < images:
        raise SystemExit(f"error: {source}: {len(train)} training images, fewer than {images}")
    train.sort(key=lambda pair: hashlib.sha256(Path(pair[0]).name.encode()).digest())
    splits["train"] = sorted(train[:images], key=lambda pair: pair[0])
    return write_dataset(folder, splits, dataset.names)


def interval(gaps: np.ndarray) -> np.ndarray:
    """95 % interval of the mean over datasets of the mean over seeds, by a bootstrap of two stages.

    Datasets are drawn with replacement, then seeds within each (Efron and Tibshirani 1993, An
    Introduction to the Bootstrap, chapter 8).

    Args:
        gaps: (seeds, datasets).

    Returns:
        (2,) Its ends.
    """
    rng = np.random.default_rng(0)
    seeds, datasets = gaps.shape
    drawn = rng.integers(datasets, size=(SAMPLES, datasets))
    means = np.empty(drawn.shape)
    for i, gap in enumerate(gaps.T):
        chosen = drawn == i
        means[chosen] = gap[rng.integers(seeds, size=(int(chosen.sum()), seeds))].mean(1)
    return np.percentile(means.mean(1), (2.5, 97.5))


def mean_curve(rows: list[dict[str, Any]], recipe: str, name: str) -> np.ndarray:
    """(epochs,) AP on a dataset, mean of the seeds."""
    curves = [row["AP"].split() for row in rows if (row["recipe"], row["data"]) == (recipe, name)]
    return np.array(curves, float).mean(0)


def tables(rows: list[dict[str, Any]], recipes: list[str], datasets: list[str]) -> list[str]:
    """Lines of Markdown: gains over the first recipe with the interval and the share of the epochs
    after which its final AP is reached, and all scores.

    Args:
        rows: By seed, dataset and recipe.
        recipes: Names.
        datasets: Names.
    """
    scores = 100 * np.array([row["score"] for row in rows])
    scores = scores.reshape(-1, len(datasets), len(recipes))
    first = recipes[0]
    gains = [[f"against {first}", *datasets, "mean", "95 % interval", "passes it after"]]
    table = [["recipe", *datasets, "mean"]]
    for k, recipe in enumerate(recipes):
        own = scores[:, :, k]
        cells = [f"{each.mean():.1f} ({each.min():.1f} to {each.max():.1f})" for each in own.T]
        table.append([recipe, *cells, f"{own.mean():.2f}"])
        if recipe == first:
            continue
        gaps = own - scores[:, :, 0]
        passed = []
        for name in datasets:
            base = mean_curve(rows, first, name)
            reached = np.flatnonzero(mean_curve(rows, recipe, name) >= base[-1]) + 1
            passed += (reached[:1] / len(base)).tolist()
        share = f"{np.mean(passed):.0%} of epochs" if passed else "-"
        low, high = interval(gaps)
        means = [f"{gap:+.1f}" for gap in gaps.mean(0)] + [f"{gaps.mean():+.2f}"]
        sets = f"{len(passed)} of {len(datasets)} sets"
        gains.append([recipe, *means, f"{low:+.2f} to {high:+.2f}", f"{share}, {sets}"])
    return [*markdown(gains), "", *markdown(table)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", required=True, help="datasets, as for data.dataset")
    parser.add_argument("--images", nargs="+", type=int, help="so many training images of each")
    parser.add_argument("--recipe", action="append", required=True, help="NAME=OPTIONS of fit")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs and tables")
    parser.add_argument("options", nargs="*", help="of fit, for all, after --")
    given = parser.parse_args()
    sources = {}
    for source in given.data:
        path = Path(source).resolve()
        name = path.parent.name if path.suffix == ".yaml" else path.name
        if not given.images:
            sources[name] = source if source == "demo" else str(path)
        for images in given.images or []:
            subset = given.folder / "subsets" / f"{name}-{images}"
            sources[subset.name] = str(write_subset(source, images, subset).resolve())
    recipes = dict(named.split("=", 1) for named in given.recipe)
    threads = max(available_cores() // given.jobs, 1)

    def row(seed: int, name: str, recipe: str) -> dict[str, Any]:
        """The figures of a training, which is done or is done now."""
        folder = given.folder / name / recipe / str(seed)
        done = folder / "figures.json"
        options = [*shlex.split(recipes[recipe]), *given.options, "--data.dataset", sources[name]]
        if not done.is_file():
            seeded = [*options, "--seed_everything", str(seed)]
            found = figures(sources[name], seeded, folder, threads)
            write_atomically(done, json.dumps(found))
        names = {"recipe": recipe, "data": name, "seed": str(seed), "options": shlex.join(options)}
        return names | json.loads(done.read_text())

    trainings = product(given.seeds, sources, recipes)
    with ThreadPoolExecutor(given.jobs) as pool:  # after a failure no other one begins
        rows = list(pool.map(row, *zip(*trainings, strict=True)))
    command = f"    python -m benchmarks.recipes {shlex.join(sys.argv[1:])}"
    lines = [command, "", "AP in hundredths.", "", *tables(rows, list(recipes), list(sources))]
    text = "\n".join(lines) + "\n"
    print(text)
    (given.folder / "study.md").write_text(text)
    write_table(given.folder / "study.csv", rows)


if __name__ == "__main__":
    main()
