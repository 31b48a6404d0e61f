"""Run folders: everything of a run lies in one, `runs/<command>-<number>` or where the user says.

config.yaml · checkpoints/{last,previous,best}.ckpt · metrics.csv · metrics.json · detections.npz · report.html · plots/
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detector.checkpoint.file import CheckpointFile, newest_intact, read_checkpoint
from detector.system.errors import InputError
from detector.system.rank_zero import rank_zero_print
from detector.system.text_file import is_file, is_impossible

ROOT = Path("runs")


def numbered(command: str) -> list[Path]:
    """The run folders of a command, oldest first."""
    found = [p for p in ROOT.glob(f"{command}-*") if p.name.removeprefix(f"{command}-").isdigit()]
    return sorted(found, key=lambda p: int(p.name.rpartition("-")[2]))


def next_run(command: str) -> Path:
    """The first number after those in use; nothing is created."""
    used = numbered(command)
    return ROOT / f"{command}-{int(used[-1].name.rpartition('-')[2]) + 1 if used else 1}"


def own_run(command: str) -> Path:
    """The folder of a new run, runs/COMMAND-NUMBER; in a process that another one of the same run has started, that one's."""
    started = "LOCAL_RANK" in os.environ and "BOLTBOX_RUN" in os.environ
    folder = Path(os.environ["BOLTBOX_RUN"]) if started else next_run(command)
    os.environ["BOLTBOX_RUN"] = str(folder)
    return folder


def check_run(run: Path) -> None:
    """Raises InputError if nothing can be written there: the run, or a folder that it is in, or the one for its checkpoints is
    a file, or the name is too long."""
    for folder in (*reversed(run.parents), run, _folder(run)):
        try:
            mode = os.stat(folder).st_mode
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as e:
            if is_impossible(e):
                raise InputError(f"run {run}: no folder can have this name (too long); give another with --run") from None
            raise
        if not stat.S_ISDIR(mode):
            raise InputError(f"run {run}: {folder} is not a folder; move it away, or give another folder with --run")


def find_checkpoint(ckpt_path: str, run: Path | None, constructor: Callable[..., Any] | None = None) -> CheckpointFile | None:
    """Find and read the checkpoint that `--ckpt_path` means.

    Args:
        ckpt_path: `last`, the newest intact checkpoint of the run; `auto`, that or None, for a fresh start; `best`; or a file.
        run: default: the most recent fit.
        constructor: see `read_checkpoint`.

    Raises:
        InputError: there is none; it says where it looked and what is wrong with what it found.
    """
    if ckpt_path not in ("last", "best", "auto"):
        path = Path(ckpt_path)
        if not is_file(path):
            raise InputError(f"ckpt_path {ckpt_path}: no such file; give a checkpoint, `last`, `best` or `auto`")
        try:
            return read_checkpoint(path, constructor)
        except InputError as e:
            raise InputError(f"ckpt_path {e}") from None
    with_checkpoints = [r for r in ([run] if run else numbered("fit")) if list(_folder(r).glob("*.ckpt"))]
    if not with_checkpoints:
        where = _folder(run) if run else _folder(ROOT / "fit-*")
        if ckpt_path == "auto":
            rank_zero_print(f"ckpt_path auto: no checkpoint in {where}, so this is a fresh start")
            return None
        raise InputError(f"ckpt_path {ckpt_path}: no checkpoint in {where}; start a run without --ckpt_path first")
    newest = max(with_checkpoints, key=lambda r: max(p.stat().st_mtime_ns for p in _folder(r).glob("*.ckpt")))
    if ckpt_path == "best":
        path = _folder(newest) / "best.ckpt"
        if not path.is_file():
            raise InputError(f"ckpt_path best: {path}: no such file")
        try:
            return read_checkpoint(path, constructor)
        except InputError as e:
            raise InputError(f"ckpt_path best: {e}") from None
    found, skipped = newest_intact(_folder(newest), constructor)
    for line in skipped:
        rank_zero_print(f"warning: {line}")
    if found is None:
        raise InputError(f"ckpt_path {ckpt_path}: no intact checkpoint in {_folder(newest)}: {'; '.join(skipped)}")
    if skipped or ckpt_path == "auto":
        rank_zero_print(f"ckpt_path {ckpt_path}: going on from {found.path}")
    return found


def _folder(run: Path) -> Path:
    return run / "checkpoints"


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, if it lies in one."""
    run = checkpoint.parent.parent
    return run if checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file() else None
