"""Cut the power of a training at random instants, resume it, and compare it with one that was never
interrupted.

    python -m benchmarks.power_loss --trials 200

Each trial runs `fit` in a forked process that records its file operations (recorded_disk.py). At
one of them the process ends, and the run folder is rebuilt as the disk may hold it then. The same
command goes on with `--ckpt_path auto`. In the end last.ckpt, best.ckpt, metrics.csv, metrics.json
and the names of all files must be those of the undisturbed run, and a checkpoint that was saved
before the power cut must not be lost.
"""

import contextlib
import io
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import auto_cli

import boltbox.detector.checkpoint.writer as writer
import cli
from benchmarks.recorded_disk import RecordedDisk
from benchmarks.resume_fuzz import command, content, unlike
from benchmarks.tables import print_header, print_row
from boltbox.detector.checkpoint.reader import newest_valid
from boltbox.detector.data.demo import make_demo
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.operating_system import kill_group

FORK = multiprocessing.get_context("fork")
CUT = 77  # exit code of a process whose power was cut
CONFIGURATIONS = {  # options of fit beside those of resume_fuzz.command
    "SGD": "--model.optim.optimizer SGD",
    "Muon, 2 workers": "--model.optim.optimizer Muon --data.workers 2",
    "save_period": "--checkpoints.every_minutes 0 --checkpoints.save_period 1",
    "val_check_interval": "--trainer.val_check_interval 2",
    "close_mosaic": "--data.augment.close_mosaic 1 --data.augment.copy_paste 0.3",
    "report": "--checkpoints.every_minutes 0 --report.enabled true --pictures.enabled true",
}
COMPARED: dict[str, Callable[[Path], Any]] = {  # file of a run: what reads it
    "metrics.csv": read_table,
    "metrics.json": Path.read_text,
    "checkpoints/last.ckpt": content,
    "checkpoints/best.ckpt": content,
}
QUICK = "--data.batch_size 8 --model.optim.nominal_batch_size 24"  # three batches an epoch
QUICK += " --autoanchor.enabled false --doctor.enabled false"


def train(folder: Path, line: list[str], cut: int = -1, seed: str = "") -> tuple[int, int]:
    """Train in a process of its own, until the end or until the power is cut.

    Args:
        folder: Holds the log and `disk`, which becomes what a power cut leaves of it.
        line: Of the command.
        cut: The number of the operation before which the power is cut; one past the end cuts it
            after the end; -1: never.
        seed: Decides what is lost.

    Returns:
        The exit code, or CUT, and the number of operations or, of a CUT, the batches that the last
        saved checkpoint had seen.
    """
    receiving, sending = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_train, args=(folder, line, cut, random.Random(seed), sending))
    process.start()
    process.join()
    kill_group(process.pid)
    code = process.exitcode or 0
    number = receiving.recv() if receiving.poll() else 0
    if code == CUT:
        shutil.rmtree(folder / "disk")
        (folder / "left").rename(folder / "disk")
    return code, number


def _train(folder: Path, line: list[str], cut: int, rng: random.Random, sending: Any) -> None:
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    saved = 0
    save = writer._save

    def save_and_note(content: dict[str, Any], targets: list[Path]) -> dict[Path, str]:
        nonlocal saved
        problems = save(content, targets)
        saved = batches(content)
        return problems

    def before(number: int, operation: str) -> None:
        if number == cut:
            print(f"power cut before operation {number}: {operation}", flush=True)
            disk.rebuild(folder / "left", rng)
            sending.send(saved)
            os._exit(CUT)

    writer._save = save_and_note
    disk = RecordedDisk(folder / "disk", before)
    code = 0
    with disk.recording():
        try:
            cli.main(line)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        sys.stdout.flush()
        if code == 0 and cut >= disk.operations:
            before(cut, "the end")
    sending.send(disk.operations)
    os._exit(code)


def batches(content: dict[str, Any]) -> int:
    """How many batches a checkpoint has seen."""
    return content["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"]


def trial(
    folder: Path, line: list[str], operations: int, seed: str, reference: Path
) -> tuple[int, str]:
    """Train below folder/disk, with one or two power cuts, each resumed.

    Args:
        folder: Of `train`.
        line: Of the command.
        operations: How many the undisturbed run has.
        seed: Decides all.
        reference: Run folder of the undisturbed run, which was trained at the same path.

    Returns:
        How many power cuts there were, and what differs in the end, or what was lost.
    """
    rng = random.Random(seed)
    (folder / "disk").mkdir()
    run = folder / "disk/run"
    cuts = [rng.randrange(operations + 1) for _ in range(rng.choice((1, 1, 2)))]
    for number, cut in enumerate(cuts + [-1]):
        resume = ["--ckpt_path", "auto"] if number else []
        code, saved = train(folder, line + resume, cut, f"{seed} {cut}")
        if code == 0:
            return number, difference(run, reference)
        if code != CUT:
            return number, f"exit code {code}"
        with contextlib.redirect_stdout(io.StringIO()):
            found = newest_valid(run / "checkpoints")
        left = batches(found[1]) if found else 0
        if left < saved:
            return number + 1, f"a checkpoint of {saved} batches is lost; {left} are left"
    raise AssertionError("the last training has no power cut")


def difference(run: Path, reference: Path) -> str:
    """What differs between two finished runs, or an empty string."""
    changed = names(run) ^ names(reference)
    if changed:
        return f"files {sorted(changed)}"
    for name, read in COMPARED.items():
        place = unlike(read(run / name), read(reference / name), name)
        if place:
            return place
    return ""


def names(run: Path) -> set[str]:
    """Of its files, without the pictures of the last validation, which the process draws that has
    validated."""
    drawn = set(run.glob("plots/val_*.jpg"))
    return {str(path.relative_to(run)) for path in run.rglob("*") if path not in drawn}


def main(trials: int = 20, seed: int = 0) -> None:
    """Cut the power of trainings.

    Args:
        trials: In all, shared by the configurations.
        seed: Decides all.
    """
    torch.set_num_threads(1)
    problems = 0
    print_header("configuration", "trials", "power cuts", "identical at the end")
    with tempfile.TemporaryDirectory() as temporary:
        data = make_demo(Path(temporary, "demo"), train=24, val=8)
        line = command(data, Path(temporary, "first"), 0, 1, more=QUICK.split())[2:]
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(line)  # so that the processes of the trials have imported everything
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which Lightning still holds
        for k, (name, options) in enumerate(CONFIGURATIONS.items()):
            folder = Path(temporary, str(k))
            disk = folder / "disk"
            disk.mkdir(parents=True)
            line = command(data, disk / "run", 0, 1, more=f"{QUICK} {options}".split())[2:]
            code, operations = train(folder, line)
            assert code == 0, (folder / "log").read_text()
            disk.rename(folder / "reference")
            counts = np.zeros(3, int)
            for number in range(k, trials, len(CONFIGURATIONS)):
                own = f"{seed} {number}"
                cuts, problem = trial(folder, line, operations, own, folder / "reference/run")
                shutil.rmtree(disk)
                counts += (1, cuts, not problem)
                if problem:
                    problems += 1
                    print(f"{name}, seed {own}: {problem}", file=sys.stderr)
            print_row(name, *counts)
    sys.exit(problems > 0)


if __name__ == "__main__":
    auto_cli(main)
