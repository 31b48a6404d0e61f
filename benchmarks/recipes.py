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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
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


@dataclass(frozen=True)
class Training:
    """One `fit`, and its figures.

    Attributes:
        source: As for data.dataset.
        dataset: Its name in tables.
        recipe: Name.
        options: Of `fit`.
        seed: For seed_everything.
        folder: Of the run.
    """

    source: str
    dataset: str
    recipe: str
    options: list[str]
    seed: int
    folder: Path

    def row(self, threads: int) -> dict[str, Any]:
        """Train or resume, evaluate on the test split if there is one, and return the figures;
        seconds so far and AP are per epoch."""
        file = self.folder / "figures.json"
        if not file.is_file():
            self._run(file, threads)
        named = {"recipe": self.recipe, "data": self.dataset, "seed": str(self.seed)}
        options = {"options": shlex.join(self.options)}
        return named | options | json.loads(file.read_text())

    def _run(self, figures: Path, threads: int) -> None:
        claim(self.folder, "fit")
        run = str(self.folder)
        fit = ["--seed_everything", str(self.seed), "--run", run, "--ckpt_path", "auto"]
        self._call("fit", self.options + fit, threads)
        evaluated = self.folder
        if "test" in DatasetFile.read(self.source).splits:
            evaluated = self.folder / "test"
            best = f"{run}/checkpoints/best.ckpt"
            line = ["--ckpt_path", best, "--run", str(evaluated), "--trust_parts", "true"]
            self._call("test", line, threads)
        metrics = json.loads((evaluated / "metrics.json").read_text())
        epochs = [row for row in read_table(self.folder / "metrics.csv") if row[f"val/{METRIC}"]]
        seconds = accumulate(float(row["seconds"]) for row in epochs)
        content = {
            "split": metrics["split"],
            "score": metrics[METRIC],
            "seconds": " ".join(f"{second:.1f}" for second in seconds),
            "AP": " ".join(row[f"val/{METRIC}"] for row in epochs),
        }
        write_atomically(figures, json.dumps(content))

    def _call(self, command: str, options: list[str], threads: int) -> None:
        log = self.folder / f"{command}.log"
        line = [sys.executable, str(ROOT / "cli.py"), command, *options]
        line += ["--trainer.enable_progress_bar", "false"]
        variables = os.environ | {"OMP_NUM_THREADS": str(threads)}
        with log.open("ab") as file:
            code = subprocess.run(line, env=variables, stdout=file, stderr=file).returncode
        if code:
            who = f"{self.recipe} on {self.dataset}, seed {self.seed}"
            raise SystemExit(f"error: {who}: {command} ended with code {code} ({log})")


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


def interval(gaps: Sequence[np.ndarray]) -> tuple[float, float]:
    """95 % interval of the mean over datasets of the mean over seeds, by a bootstrap of two stages.

    Datasets are drawn with replacement, then seeds within each (Efron and Tibshirani 1993, An
    Introduction to the Bootstrap, chapter 8).
    """
    rng = np.random.default_rng(0)
    shape = SAMPLES, len(gaps)
    drawn = rng.integers(len(gaps), size=shape)
    means = np.empty(shape)
    for i, gap in enumerate(gaps):
        chosen = drawn == i
        means[chosen] = gap[rng.integers(len(gap), size=(int(chosen.sum()), len(gap)))].mean(1)
    low, high = np.percentile(means.mean(1), (2.5, 97.5))
    return float(low), float(high)


def first_pass(base: np.ndarray, other: np.ndarray) -> float | None:
    """After which share of the epochs the mean curve of `other` reaches the last value of `base`'s.

    Args:
        base: (seeds, epochs) AP.
        other: The same.
    """
    reached = np.flatnonzero(other.mean(0) >= base.mean(0)[-1])
    return float((reached[0] + 1) / base.shape[1]) if len(reached) else None


def tables(rows: list[dict[str, Any]], recipes: list[str], datasets: list[str]) -> list[str]:
    """Lines of Markdown: gains over the first recipe with the interval, and all scores.

    Args:
        rows: Of all recipes on all datasets with the same seeds.
        recipes: Names.
        datasets: Names.
    """
    scores = {}  # (seeds,) AP in hundredths
    curves = {}  # (seeds, epochs) AP
    for recipe in recipes:
        for name in datasets:
            own = [row for row in rows if (row["recipe"], row["data"]) == (recipe, name)]
            scores[recipe, name] = 100 * np.array([row["score"] for row in own])
            curves[recipe, name] = np.array([row["AP"].split() for row in own], float)
    first = recipes[0]
    gains = [[f"against {first}", *datasets, "mean", "95 % interval", "passes it after"]]
    table = [["recipe", *datasets, "mean"]]
    for recipe in recipes:
        own = [scores[recipe, name] for name in datasets]
        cells = [f"{each.mean():.1f} ({each.min():.1f} to {each.max():.1f})" for each in own]
        table.append([recipe, *cells, f"{np.mean([each.mean() for each in own]):.2f}"])
        if recipe == first:
            continue
        gaps = [scores[recipe, name] - scores[first, name] for name in datasets]
        shares = [first_pass(curves[first, name], curves[recipe, name]) for name in datasets]
        passed = [share for share in shares if share is not None]
        low, high = interval(gaps)
        means = [gap.mean() for gap in gaps]
        cells = [f"{mean:+.1f}" for mean in means]
        cells += [f"{np.mean(means):+.2f}", f"{low:+.2f} to {high:+.2f}", "-"]
        if passed:
            share = np.mean(passed)
            cells[-1] = f"{share:.0%} of epochs, {len(passed)} of {len(shares)} sets"
        gains.append([recipe, *cells])
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
    trainings = []
    for seed in given.seeds:
        for name, source in sources.items():
            for recipe, text in recipes.items():
                line = [*shlex.split(text), *given.options, "--data.dataset", source]
                folder = given.folder / name / recipe / str(seed)
                trainings.append(Training(source, name, recipe, line, seed, folder))
    threads = max(available_cores() // given.jobs, 1)
    with ThreadPoolExecutor(given.jobs) as pool:  # after a failure no other one begins
        rows = list(pool.map(partial(Training.row, threads=threads), trainings))
    command = f"    python -m benchmarks.recipes {shlex.join(sys.argv[1:])}"
    lines = [command, "", "AP in hundredths.", "", *tables(rows, list(recipes), list(sources))]
    text = "\n".join(lines) + "\n"
    print(text)
    (given.folder / "study.md").write_text(text)
    write_table(given.folder / "study.csv", rows)


if __name__ == "__main__":
    main()
