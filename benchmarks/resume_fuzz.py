"""Kill a training at random instants, resume it, and compare it with one that was never
interrupted.

    python -m benchmarks.resume_fuzz --kills 20

Each trial starts `cli.py fit` in a process of its own, which dies by SIGKILL at a chosen instant:
after a training batch, in the middle of validation, half way through writing a checkpoint, or
between the two moves that put one in place. Then the same command goes on with `--ckpt_path auto`.
Weights, average, optimizer state and the rows of metrics.csv must be identical.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import IO, Any

import lightning as L
import torch
from jsonargparse import auto_cli

import boltbox.detector.checkpoint.writer as checkpoints
import boltbox.detector.system.atomic_file as files
from benchmarks.tables import print_header, print_row
from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.data.demo import make_demo
from boltbox.detector.system.csv_table import read_table

ROOT = Path(__file__).parents[1]
EPOCHS = 3
BATCHES = 6
OPTIONS = f"""--data.image_size 64 --data.batch_size 4 --data.augment.mixup 0.3 --trainer.max_epochs {EPOCHS}
    --model.network.width_multiple 0.125 --model.network.depth_multiple 0.1 --model.network.levels [5]
    --model.optim.nominal_batch_size 12 --model.multi_scale true --warmup.warmup_epochs 2
    --trainer.accelerator cpu --trainer.precision 32-true --trainer.enable_progress_bar false
    --trainer.callbacks benchmarks.resume_fuzz.Kill --report.enabled false --pictures.enabled false"""
# the clock, and the x-axis of Lightning's loggers, which a resume within an epoch changes
NOT_COMPARED = {"seconds", "_batches_that_stepped"}
# how often each happens at least in the run below: 24 images in batches of 4
MOST = {"batch": EPOCHS * BATCHES, "validation": EPOCHS * 2, "writing": 9, "moving": 9}


class Kill(L.Callback):
    """Dies at the instant that BOLTBOX_KILL names, like `batch:7` or `writing:2` (counted from 0);
    `batch:7:SIGTERM` sends that signal instead, `batch:7:SIGTERM:group` to the whole process group,
    from outside, as `timeout` and systemd do, and `batch:7:SIGTERM:agent` to torchrun's agent, and
    waits until that has passed it on. Without it, does nothing."""

    def __init__(self) -> None:
        kill = os.environ.get("BOLTBOX_KILL", "").split(":")
        self.where, at, name, self.whom = (kill + ["", "", ""])[:4]
        self.left = int(at or 0)
        self.signal = signal.Signals[name or "SIGKILL"]
        if os.environ.get("LOCAL_RANK", "0") != "0":
            self.where = ""
        self.write_beside = files.write_beside
        self.replace = os.replace
        if self.where == "writing":
            checkpoints.write_beside = self._write_beside
        elif self.where == "moving":
            checkpoints.os.replace = self._replace

    def _count(self, where: str) -> None:
        if where != self.where:
            return
        self.left -= 1
        if self.left != -1:
            return
        if self.whom == "group":
            line = f"kill -{self.signal.value} -{os.getpgrp()}"
            subprocess.run(["sh", "-c", line], start_new_session=True)
        else:
            os.kill(os.getppid() if self.whom == "agent" else os.getpid(), self.signal)

    def _write_beside(self, path: Path, write: Callable[[IO[bytes]], None]) -> Path:
        def write_half(file: IO[bytes]) -> None:
            write(file)
            if self.left == 0:
                file.truncate(file.tell() // 2)
                file.flush()
            self._count("writing")

        return self.write_beside(path, write_half)

    def _replace(self, source: Path, target: Path) -> None:
        self.replace(source, target)
        if Path(target).suffix == ".ckpt":
            self._count("moving")

    def on_train_start(self, *_: Any) -> None:
        self._count("start")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._count("batch")
        waits = self.where == "batch" and self.whom == "agent" and self.left == -1
        while waits and not trainer.checkpoint_callback.signal.received:
            time.sleep(0.01)

    def on_validation_batch_end(self, *_: Any) -> None:
        self._count("validation")


def command(
    data: Path | str,
    run: Path,
    workers: int,
    ranks: int,
    within_epochs: bool = True,
    more: Sequence[str] = (),
) -> list[str]:
    """A small training with everything on: warm-up, accumulation, mosaic, mixup, image size that
    varies. within_epochs: a checkpoint after every batch. more: options."""
    every = 1e-9 if within_epochs else 0
    options = f"""--data.dataset {data} --data.workers {workers} --trainer.devices {ranks} --run {run}
        --checkpoints.every_minutes {every} {OPTIONS}"""
    return [sys.executable, str(ROOT / "cli.py"), "fit"] + options.split() + list(more)


def start(line: list[str], kill: str = "") -> int:
    """Run a command to its end, and clear away what it has left running; its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        process = TrainingProcess(line, log, BOLTBOX_KILL=kill, OMP_NUM_THREADS="1")
        code = process.wait()
        process.finish()
        if code not in (0, -signal.SIGKILL):
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
    return code


def difference(run: Path, reference: Path) -> str:
    """What differs between two finished runs, or an empty string."""
    ours, theirs = (content(r / "checkpoints/last.ckpt") for r in (run, reference))
    for key in ("state_dict", "optimizer_states", "processes", "global_step", "epoch"):
        place = unlike(ours[key], theirs[key], key)
        if place:
            return place
    ours, theirs = (read_table(r / "metrics.csv") for r in (run, reference))
    return unlike(ours, theirs, "metrics.csv")


def content(checkpoint: Path) -> dict[str, Any]:
    return torch.load(checkpoint, weights_only=True)


def unlike(a: Any, b: Any, place: str) -> str:
    """The first place where two nested structures differ, NOT_COMPARED aside, or an empty string."""
    if isinstance(a, torch.Tensor):
        return "" if isinstance(b, torch.Tensor) and torch.equal(a, b) else place
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        a = dict(enumerate(a))
        b = dict(enumerate(b))
    if not (isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys()):
        return "" if a == b else place
    for key in sorted(a.keys() - NOT_COMPARED, key=str):
        found = unlike(a[key], b[key], f"{place}.{key}")
        if found:
            return found
    return ""


def trial(line: list[str], kills: list[str], run: Path, reference: Path) -> tuple[int, str]:
    """A run that is killed at each of these instants in turn and resumed.

    Args:
        line: Of `command`.
        kills: The instants.
        run: The run folder of the command.
        reference: That of a run without kills.

    Returns:
        How many kills hit, and what differs in the end.
    """
    hits = 0
    for kill in kills + [""]:
        resume = ["--ckpt_path", "auto"] if hits else []
        code = start(line + resume, kill)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            return hits, f"exit code {code}"
        hits += 1
    return hits, difference(run, reference)


def main(kills: int = 20, seed: int = 0, ranks: int = 2, more: str = "") -> None:
    """Kill trainings until so many kills have hit, with 0 and 2 workers, and up to so many ranks.

    Args:
        kills: For each.
        seed: Decides the instants.
        ranks: The most.
        more: Options of fit, like "--trainer.precision bf16-mixed".
    """
    rng = random.Random(seed)
    instants = [f"{where}:{k}" for where, most in MOST.items() for k in range(most)]
    words = more.split()
    print_header("workers", "ranks", "runs", "kills that hit", "identical at the end")
    with tempfile.TemporaryDirectory() as folder:
        data = make_demo(Path(folder, "demo"), train=24, val=8)
        for world, workers in product(range(1, ranks + 1), (0, 2)):
            reference = Path(folder, f"{world}-{workers}")
            assert start(command(data, reference, workers, world, more=words)) == 0
            wrong = difference(reference, Path(folder, f"{world}-0"))
            assert not wrong, "the number of workers changes nothing"
            hits = 0
            runs = 0
            same = 0
            while hits < kills:
                run = Path(folder, f"{world}-{workers}-{runs}")
                chosen = rng.choices(instants, k=rng.randint(1, 3))
                line = command(data, run, workers, world, more=words)
                hit, wrong = trial(line, chosen, run, reference)
                hits += hit
                runs += 1
                same += not wrong
                if wrong:
                    print(f"{chosen}: differs in {wrong}", file=sys.stderr)
            print_row(workers, world, runs, hits, same)


if __name__ == "__main__":
    auto_cli(main)
