"""Kill a training at random instants, resume it, and compare it with one that was never
interrupted.

    python -m benchmarks.resume_fuzz --kills 20

Each trial starts `cli.py fit` in a process of its own, which dies by SIGKILL at a chosen instant:
after a training batch, in the middle of validation, half way through writing a checkpoint, or
between the two moves that put one in place. Then the same command goes on with `--ckpt_path auto`.
Weights, average, optimizer state and the rows of metrics.csv must be identical.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import lightning as L
import torch
from jsonargparse import auto_cli

import boltbox.detector.checkpoint.writer as checkpoints
import boltbox.detector.system.atomic_file as files
from benchmarks.tables import print_header, print_row
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
        if self.left == -1 and self.whom == "group":
            kill_group(self.signal)
        elif self.left == -1:
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


def kill_group(number: int) -> None:
    """Send a signal to all processes of this one's group, from a process that is not in it."""
    group = os.getpgrp()
    sender = os.fork()
    if sender == 0:
        os.setsid()
        os.killpg(group, number)
        os._exit(0)
    os.waitpid(sender, 0)


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
    """Run a command to its end, in a session of its own that is cleared away afterwards; its exit
    code."""
    folders = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = dict(os.environ, BOLTBOX_KILL=kill, PYTHONPATH=folders, OMP_NUM_THREADS="1")
    for name in ("BOLTBOX_RUN", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    with tempfile.NamedTemporaryFile() as log:
        pid, code = run(line, environment, Path(log.name))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if code not in (0, -signal.SIGKILL):
            print(log.read().decode(errors="replace")[-3000:], file=sys.stderr)
    return code


def run(line: list[str], environment: dict[str, str], log: Path) -> tuple[int, int]:
    """Process number and exit code of a command. (The tests put a quicker start in its place.)"""
    with log.open("ab") as file:
        process = subprocess.Popen(
            line, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        return process.pid, process.wait()


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


def trial(
    folder: Path,
    data: Path | str,
    kills: list[str],
    workers: int,
    ranks: int,
    reference: Path,
    more: Sequence[str] = (),
) -> tuple[int, str]:
    """A run that is killed at each of these instants in turn and resumed; how many kills hit, and
    what differs in the end."""
    line = command(data, folder, workers, ranks, more=more)
    hits = 0
    for kill in kills + [""]:
        resume = ["--ckpt_path", "auto"] if hits else []
        code = start(line + resume, kill)
        hits += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            return hits, f"exit code {code}"
        if code == 0:
            break
    return hits, difference(folder, reference)


def random_kill(rng: random.Random) -> str:
    where = rng.choice(list(MOST))
    return f"{where}:{rng.randrange(MOST[where])}"


def trials(
    root: Path,
    data: Path,
    workers: int,
    ranks: int,
    kills: int,
    rng: random.Random,
    more: list[str],
) -> tuple[int, int, int]:
    """Trials until so many kills have hit: how many runs, kills that hit, identical at the end."""
    reference = root / f"{ranks}-{workers}"
    assert start(command(data, reference, workers, ranks, more=more)) == 0
    wrong = difference(reference, root / f"{ranks}-0")
    assert not wrong, "the number of workers changes nothing"
    hits = 0
    runs = 0
    same = 0
    while hits < kills:
        instants = [random_kill(rng) for _ in range(rng.randint(1, 3))]
        run = root / f"{ranks}-{workers}-{runs}"
        hit, wrong = trial(run, data, instants, workers, ranks, reference, more)
        hits += hit
        runs += 1
        same += not wrong
        if wrong:
            print(f"{instants}: differs in {wrong}", file=sys.stderr)
    return runs, hits, same


def main(kills: int = 20, seed: int = 0, ranks: int = 2, more: str = "") -> None:
    """Kill trainings until so many kills have hit, with 0 and 2 workers, and up to so many ranks.

    Args:
        kills: For each.
        seed: Decides the instants.
        ranks: The most.
        more: Options of fit, like "--trainer.precision bf16-mixed".
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = make_demo(root / "demo", train=24, val=8)
        print_header("workers", "ranks", "runs", "kills that hit", "identical at the end")
        for world in range(1, ranks + 1):
            for workers in (0, 2):
                counts = trials(root, data, workers, world, kills, rng, more.split())
                print_row(workers, world, *counts)


if __name__ == "__main__":
    auto_cli(main)
