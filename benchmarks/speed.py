"""This commit beside an older one, turn about: whole trainings by the command line, and where their
time goes.

    python -m benchmarks.speed --against 7757bac --rounds 3 -- --data.dataset BCCD
        --model.start.weights yolov5n.pt --data.image_size 320 --trainer.max_epochs 4

The older commit's files are unpacked beside and run in the same environment. Each
training is a process with options that both know, everything else at its default; Lightning's
SimpleProfiler notes the parts. A ratio is that of a round's two trainings; the table has the median
of the rounds, the least and the greatest ratio. Both have parsed the labels once before. A round
has a seed of its own, so the last row compares what came of the two trainings. Commit 7757bac
needs faster-coco-eval.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.tables import medians_and_ratios, print_header, print_row

ROOT = Path(__file__).parents[1]
PROFILER = "lightning.pytorch.profilers.SimpleProfiler"
PARTS = {  # name: profiled actions that belong to it; the rarest happens once each time
    "a training batch: forward, loss, backward, step": r"run_training_batch",
    "waiting for a training batch": r"\[_TrainingEpochLoop\]\.train_dataloader_next",
    "a validation: batches, boxes, metrics": (
        r"\[_EvaluationLoop\]\.val_next|\[Strategy\]\w+\.(validation_step|batch_to_device)"
        r"|\[LightningModule\]Detector\.on_validation_(start|epoch_end)"
    ),
    "checkpoints of an epoch, as the loop waits": r"\[Callback\]Checkpoints.*\.on_train_epoch_end",
    "report": r"\[Callback\]Report\.on_fit_end",
    "an epoch, validation and checkpoints included": r"run_training_epoch",
}


def timed(line: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of a command, and the most memory of its first process in bytes; what it prints goes
    to log.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("w") as log:
        start = time.perf_counter()
        process = subprocess.Popen(line, cwd=folder, env=environment, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(line)} failed:\n{(folder / 'log.txt').read_text()[-2000:]}")
    return seconds, used.ru_maxrss * 1024


def measured(tree: Path, folder: Path, seed: int, options: list[str]) -> dict[str, float]:
    """The figures of one training."""
    cache = folder.parent / "cache"
    environment = dict(os.environ, PYTHONPATH=str(tree), BOLTBOX_CACHE=str(cache))
    line = f"""{sys.executable} {tree}/cli.py fit --trainer.enable_progress_bar false
        --trainer.profiler {PROFILER} --trainer.profiler.dirpath {folder}
        --trainer.profiler.filename profile --seed_everything {seed} --run {folder}/run"""
    seconds, memory = timed(line.split() + options, folder, environment)
    actions = profile(folder / "fit-profile.txt")
    found = {"the whole command": seconds} | parts(actions)
    found["start and end: all but the epochs"] = seconds - actions["run_training_epoch"][1]
    found["memory of the training process, GB"] = memory / 1e9
    metrics = json.loads((folder / "run/metrics.json").read_text())
    found["mAP50-95 of the best epoch"] = metrics["mAP50-95"]
    return found


def profile(path: Path) -> dict[str, tuple[int, float]]:
    """Action -> calls, seconds in all, of a SimpleProfiler's report."""
    actions = {}
    for row in path.read_text().splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"\d+", cells[2]) and cells[0] != "Total":
            actions[cells[0]] = int(cells[2]), float(cells[3])
    return actions


def parts(actions: dict[str, tuple[int, float]]) -> dict[str, float]:
    """Seconds of each of PARTS, each time that it happened."""
    found = {}
    for name, pattern in PARTS.items():
        own = [numbers for action, numbers in actions.items() if re.fullmatch(pattern, action)]
        if own:
            calls, seconds = zip(*own, strict=True)
            found[name] = sum(seconds) / min(calls)
    return found


def turn_about(
    first: str, second: str, rounds: int, measure: Callable[[str, int], dict[str, float]]
) -> None:
    """Measure both in each round, A B, B A and so on, and print a table after it: medians of the
    rounds and of their ratios, the least and the greatest ratio.

    Args:
        first: Name.
        second: Likewise.
        rounds: How many.
        measure: Figures of a training, by name and seed.
    """
    done = []
    for seed in range(rounds):
        order = (second, first) if seed % 2 else (first, second)
        done.append({name: measure(name, seed) for name in order})
        print(f"after round {seed + 1} of {rounds}:\n")
        print_header("", first, second, "ratio", "lowest", "highest")
        for row in done[seed][second]:
            pairs = [(old[first].get(row, np.nan), old[second][row]) for old in done]
            (median, *_), numbers = medians_and_ratios(np.array(pairs))
            print_row(row, *(f"{number:.3g}" for number in (median, *numbers)))
        print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--against", default="7757bac", help="the older commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("options", nargs="+", help="of fit, for both, after --; paths are absolute")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder, given.against)
        older.mkdir()
        subprocess.run(f"git archive {given.against} | tar -x -C {older}", shell=True, check=True)
        trees = {given.against: older, "this commit": ROOT}

        def measure(name: str, seed: int, more: Sequence[str] = ()) -> dict[str, float]:
            run = Path(folder, f"runs-{trees[name].name}", str(seed))  # no spaces
            return measured(trees[name], run, seed, [*given.options, *more])

        # labels parsed, files in the kernel's cache, byte code compiled
        short = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1"]
        for name in trees:
            measure(name, given.rounds, short)
        turn_about(*trees, given.rounds, measure)


if __name__ == "__main__":
    main()
