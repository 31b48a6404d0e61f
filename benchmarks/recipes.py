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
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.tables import markdown
from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.csv_table import read_table, write_table
from boltbox.detector.system.errors import InputError

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

    @property
    def figures_file(self) -> Path:
        return self.folder / "figures.json"

    def is_done(self) -> bool:
        return self.figures_file.is_file()

    def run(self, threads: int) -> None:
        """Train or resume, then evaluate on the test split if there is one.

        Raises:
            InputError: The command failed; it names the log.
        """
        claim(self.folder, "fit")
        quiet = ["--trainer.enable_progress_bar", "false", "--ckpt_path"]
        seed = ["--seed_everything", str(self.seed), "--run", str(self.folder)]
        self._call("fit", self.options + seed + quiet + ["auto"], threads)
        evaluated = self.folder
        if "test" in DatasetFile.read(self.source).splits:
            evaluated = self.folder / "test"
            best = [str(self.folder / "checkpoints/best.ckpt"), "--run", str(evaluated)]
            self._call("test", quiet + best + ["--trust_parts", "true"], threads)
        metrics = json.loads((evaluated / "metrics.json").read_text())
        epochs = [row for row in read_table(self.folder / "metrics.csv") if row[f"val/{METRIC}"]]
        seconds = accumulate(float(row["seconds"]) for row in epochs)
        figures = {
            "split": metrics["split"],
            "score": metrics[METRIC],
            "seconds": " ".join(f"{second:.1f}" for second in seconds),
            "AP": " ".join(row[f"val/{METRIC}"] for row in epochs),
        }
        write_atomically(self.figures_file, json.dumps(figures))

    def _call(self, command: str, options: list[str], threads: int) -> None:
        log = self.folder / f"{command}.log"
        line = [sys.executable, str(ROOT / "cli.py"), command] + options
        variables = os.environ | {"OMP_NUM_THREADS": str(threads)}
        with log.open("ab") as file:
            code = subprocess.run(line, env=variables, stdout=file, stderr=file).returncode
        if code:
            who = f"{self.recipe} on {self.dataset}, seed {self.seed}"
            raise InputError(f"{who}: {command} ended with code {code} ({log})")

    def row(self) -> dict[str, Any]:
        """The training and its figures; seconds so far and AP are per epoch."""
        named = {"recipe": self.recipe, "data": self.dataset, "seed": str(self.seed)}
        options = {"options": shlex.join(self.options)}
        return named | options | json.loads(self.figures_file.read_text())


def write_subset(source: str, images: int, folder: Path) -> Path:
    """A data.yaml in `folder` with so many training images of a YOLO dataset and all of its val.

    The hash of their names decides which: a smaller subset is part of each larger one.

    Raises:
        InputError: Fewer images than that, another format, or no val split of its own.
    """
    dataset = DatasetFile.read(source)
    if dataset.format not in ("yolo", "voc") or dataset.share is not None:
        raise InputError(f"{source}: subsets need YOLO or VOC labels and a val split of its own")
    paths = [Path(path) for path in dataset.open("train", strict=False).files]
    if len(paths) < images:
        raise InputError(f"{source}: {len(paths)} training images, fewer than {images}")
    paths.sort(key=lambda path: hashlib.sha256(path.name.encode()).digest())
    chosen = sorted(paths[:images])
    lines = [path.stem if dataset.format == "voc" else str(path.resolve()) for path in chosen]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("\n".join(lines))
    content = {
        "path": str(dataset.root.resolve()),
        "format": dataset.format,
        "names": dataset.names,
    }
    for name, entries in dataset.splits.items():
        content[name] = [str(path.resolve()) for path in entries]
    content["train"] = [str((folder / "train.txt").resolve())]
    (folder / "data.yaml").write_text(yaml.safe_dump(content))
    return folder / "data.yaml"


def run_all(trainings: Sequence[Training], jobs: int) -> None:
    """Run those that are not done, `jobs` at a time, each with its share of the threads.

    Raises:
        InputError: One failed; those that are running end first, no other one begins.
    """
    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(t.run, threads) for t in trainings if not t.is_done()]
        done, undone = wait(waiting, return_when=FIRST_EXCEPTION)
        for future in undone:
            future.cancel()
    for future in done:
        if not future.cancelled():
            future.result()


def interval(gaps: Sequence[np.ndarray], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean over datasets of the mean over seeds, by a bootstrap of two stages.

    Datasets are drawn with replacement, then seeds within each (Efron and Tibshirani 1993, An
    Introduction to the Bootstrap, chapter 8).
    """
    rng = np.random.default_rng(seed)
    shape = SAMPLES, len(gaps)
    drawn = rng.integers(len(gaps), size=shape)
    means = np.empty(shape)
    for i, gap in enumerate(gaps):
        chosen = drawn == i
        means[chosen] = gap[rng.integers(len(gap), size=(int(chosen.sum()), len(gap)))].mean(1)
    low, high = np.percentile(means.mean(1), (2.5, 97.5))
    return float(low), float(high)


def first_pass(base: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float | None:
    """After which share of the epochs the mean curve of `other` reaches the last value of `base`'s.

    Args:
        base: AP per epoch, one array per seed.
        other: The same.
    """
    target = np.mean(base, axis=0)[-1]
    reached = np.flatnonzero(np.mean(other, axis=0) >= target)
    return float((reached[0] + 1) / len(base[0])) if len(reached) else None


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: gains over the first recipe with the interval, and all scores."""
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    datasets = list(dict.fromkeys(row["data"] for row in rows))
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    scores = np.full((len(recipes), len(datasets), len(seeds)), np.nan)  # AP in hundredths
    curves = {}
    for row in rows:
        place = (
            recipes.index(row["recipe"]),
            datasets.index(row["data"]),
            seeds.index(row["seed"]),
        )
        scores[place] = 100 * row["score"]
        curves[place] = np.array(row["AP"].split(), float)
    gain_table = [
        [f"against {recipes[0]}"] + datasets + ["mean", "95 % interval", "passes it after"]
    ]
    score_table = [["recipe"] + datasets + ["mean"]]
    for r, recipe in enumerate(recipes):
        cells = []
        means = []
        gain_cells = []
        gaps = []
        shares = []
        for d in range(len(datasets)):
            own = scores[r, d][~np.isnan(scores[r, d])]
            cell = "-"
            if len(own):
                cell = f"{own.mean():.1f} ({own.min():.1f} to {own.max():.1f})"
                means.append(own.mean())
            cells.append(cell)
            gap = scores[r, d] - scores[0, d]
            both = np.flatnonzero(~np.isnan(gap))
            cell = "-"
            if len(both):
                cell = f"{gap[both].mean():+.1f}"
                gaps.append(gap[both])
                base = [curves[0, d, s] for s in both]
                shares.append(first_pass(base, [curves[r, d, s] for s in both]))
            gain_cells.append(cell)
        mean = f"{np.mean(means):.2f}" if len(means) == len(datasets) else "-"
        score_table.append([recipe] + cells + [mean])
        if r:
            gain_table.append([recipe] + gain_cells + _summary(gaps, shares))
    return markdown(gain_table) + [""] + markdown(score_table)


def _summary(gaps: list[np.ndarray], shares: list[float | None]) -> list[str]:
    """Cells of all datasets: mean gain, its interval, when the recipe passes the first one."""
    if not gaps:
        return ["-"] * 3
    low, high = interval(gaps)
    mean = np.mean([gap.mean() for gap in gaps])
    passed = [share for share in shares if share is not None]
    after = "-"
    if passed:
        after = f"{np.mean(passed):.0%} of epochs, {len(passed)} of {len(shares)} sets"
    return [f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}", after]


def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", required=True, help="datasets, as for data.dataset")
    parser.add_argument(
        "--images", nargs="+", type=int, help="only so many training images of each"
    )
    parser.add_argument("--recipe", action="append", required=True, help="NAME=OPTIONS of fit")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs and tables")
    options = parser.parse_args(words[:end])
    trainings = []
    try:
        sources = {}
        for source in options.data:
            path = Path(source).resolve()
            name = path.parent.name if path.suffix == ".yaml" else path.name
            if not options.images:
                sources[name] = source if source == "demo" else str(path)
            for images in options.images or []:
                subset = options.folder / "subsets" / f"{name}-{images}"
                sources[subset.name] = str(write_subset(source, images, subset))
        for seed in options.seeds:
            for name, source in sources.items():
                for named in options.recipe:
                    recipe, text = named.split("=", 1)
                    line = shlex.split(text) + words[end + 1 :] + ["--data.dataset", source]
                    folder = options.folder / name / recipe / str(seed)
                    trainings.append(Training(source, name, recipe, line, seed, folder))
        run_all(trainings, options.jobs)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
    rows = [training.row() for training in trainings]
    command = f"    python -m benchmarks.recipes {shlex.join(words)}"
    text = "\n".join([command, "", "AP in hundredths.", ""] + tables(rows)) + "\n"
    print(text)
    (options.folder / "study.md").write_text(text)
    write_table(options.folder / "study.csv", rows)


if __name__ == "__main__":
    main()
