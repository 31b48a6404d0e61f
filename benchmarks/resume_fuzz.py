"""Kill a training at random instants, resume it, and compare it with one that was never
interrupted.

    python -m benchmarks.resume_fuzz --kills 20

Each trial starts `cli.py fit` in a process of its own, which dies by SIGKILL at a chosen instant:
after a training batch, in the middle of validation, half way through writing a checkpoint, or
between the two moves that put one in place. Then the same command goes on with `--ckpt_path auto`.
Weights, average, optimizer state and the rows of metrics.csv must be identical.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch

import boltbox.detector.checkpoint.writer as checkpoints
import boltbox.detector.system.atomic_file as files
from boltbox.detector.data.demo import make_demo
from boltbox.detector.system.csv_table import read_table

ROOT = Path(__file__).parents[1]
WHERE = ("batch", "validation", "writing", "moving")
EPOCHS = 3
BATCHES = 6
SAVES = 9  # of the run below: 24 images in batches of 4; saves at least


class Kill(L.Callback):
    """Dies at the instant that BOLTBOX_KILL names, like `batch:7` or `writing:2` (counted from 0);
    `batch:7:SIGTERM` sends that signal instead, `batch:7:SIGTERM:group` to the whole process group,
    from outside, as `timeout` and systemd do, and `batch:7:SIGTERM:agent` to torchrun's agent, and
    waits until that has passed it on. Without it, does nothing."""

    def __init__(self) -> None:
        kill = os.environ.get("BOLTBOX_KILL", "").split(":")
        self.where, at, name, whom = (kill + ["", "", ""])[:4]
        self.left = int(at or 0)
        self.signal = signal.Signals[name or "SIGKILL"]
        self.whom = whom
        if int(os.environ.get("LOCAL_RANK", 0)):
            self.where = ""
        if self.where == "writing":
            whole = files.write_beside
            checkpoints.write_beside = lambda path, write: whole(
                path, lambda file: self._half(file, write)
            )
        elif self.where == "moving":
            replace = os.replace
            checkpoints.os.replace = lambda a, b: (
                replace(a, b),
                Path(b).suffix == ".ckpt" and self._count(),
            )

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            if self.whom == "group":
                kill_group(self.signal)
            else:
                os.kill(os.getppid() if self.whom == "agent" else os.getpid(), self.signal)

    def _half(self, file: Any, write: Any) -> None:
        write(file)
        if self.left == 0:
            file.truncate(file.tell() // 2)
            file.flush()
        self._count()

    def on_train_start(self, *_: Any) -> None:
        if self.where == "start":
            self._count()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self.where == "batch":
            self._count()
            while (
                self.whom == "agent"
                and self.left == -1
                and not trainer.checkpoint_callback.signal.received
            ):
                time.sleep(0.01)

    def on_validation_batch_end(self, *_: Any) -> None:
        if self.where == "validation":
            self._count()


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
    data: Path,
    run: Path,
    workers: int,
    ranks: int,
    within_epochs: bool = True,
    more: Sequence[str] = (),
) -> list[str]:
    """A small training with everything on: warm-up, accumulation, mosaic, mixup, image size that
    varies. within_epochs: a checkpoint after every batch. more: options."""
    options = {
        "data.dataset": data, "data.image_size": 64, "data.batch_size": 4, "data.workers": workers,
        "data.augment.mixup": 0.3, "trainer.max_epochs": EPOCHS,
        "model.network.width_multiple": 0.125, "model.network.depth_multiple": 0.1, "model.network.levels": "[5]", "model.optim.nominal_batch_size": 12, "model.multi_scale": "true",
        "trainer.accelerator": "cpu", "trainer.devices": ranks, "trainer.precision": "32-true", "warmup.warmup_epochs": 2,
        "checkpoints.every_minutes": 1e-9 if within_epochs else 0, "trainer.enable_progress_bar": "false",
        "trainer.callbacks": "benchmarks.resume_fuzz.Kill", "report.enabled": "false", "pictures.enabled": "false", "run": run,
    }  # fmt: skip
    line = [sys.executable, str(ROOT / "cli.py"), "fit"]
    for name, value in options.items():
        line += [f"--{name}", str(value)]
    return line + list(more)


def start(line: list[str], kill: str = "") -> int:
    """Run a command to its end, in a session of its own that is cleared away afterwards; its exit
    code."""
    environment = dict(os.environ, BOLTBOX_KILL=kill, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
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
    ours, theirs = (
        torch.load(r / "checkpoints/last.ckpt", weights_only=True) for r in (run, reference)
    )
    for key in ("state_dict", "optimizer_states", "processes", "global_step", "epoch"):
        place = unlike(ours[key], theirs[key], key)
        if place:
            return place
    return unlike(epochs(run), epochs(reference), "metrics.csv")


def epochs(run: Path) -> list[dict[str, str]]:
    """Rows of metrics.csv, without what a clock decides."""
    rows = read_table(run / "metrics.csv")
    for row in rows:
        del row["seconds"]
    return rows


def unlike(a: Any, b: Any, place: str) -> str:
    """The first place where two nested structures differ, or an empty string."""
    if isinstance(a, torch.Tensor):
        return "" if isinstance(b, torch.Tensor) and torch.equal(a, b) else place
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        a = dict(enumerate(a))
        b = dict(enumerate(b))
    if not (isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys()):
        return "" if a == b else place
    for key in a:
        found = unlike(a[key], b[key], f"{place}.{key}")
        if found:
            return found
    return ""


def trial(
    folder: Path,
    data: Path,
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
    where = rng.choice(WHERE)
    most = {"batch": EPOCHS * BATCHES, "validation": EPOCHS * 2, "writing": SAVES, "moving": SAVES}[
        where
    ]
    return f"{where}:{rng.randrange(most)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "more", nargs="*", help="further options of fit, after --: like -- --model.compile true"
    )
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = make_demo(root / "demo", train=24, val=8)
        print("| workers | ranks | runs | kills that hit | identical at the end |")
        print("|---|---|---|---|---|")
        for workers, ranks in ((0, 1), (2, 1), (0, 2), (2, 2)):
            name = f"{workers}-{ranks}"
            reference = root / f"reference-{name}"
            assert start(command(data, reference, workers, ranks, more=options.more)) == 0
            if workers == 0:
                alone = reference
            assert not difference(reference, alone), "the number of workers changes nothing"
            hits = runs = same = 0
            while hits < options.kills:
                kills = [random_kill(rng) for _ in range(rng.randint(1, 3))]
                hit, wrong = trial(
                    root / f"run-{name}-{runs}",
                    data,
                    kills,
                    workers,
                    ranks,
                    reference,
                    options.more,
                )
                hits = hits + hit
                runs = runs + 1
                same = same + (not wrong)
                if wrong:
                    print(f"{kills}: differs in {wrong}", file=sys.stderr)
            print(f"| {workers} | {ranks} | {runs} | {hits} | {same} |", flush=True)


if __name__ == "__main__":
    main()
