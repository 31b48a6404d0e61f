"""Checkpoint files: reading one, the newest valid one of a folder, and what `--ckpt_path` means."""

from __future__ import annotations

from os.path import exists, isfile
from pathlib import Path
from typing import Any

from boltbox.detector.checkpoint.runs import ROOT, numbered
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.weights.torch_file import load_torch_file
from boltbox.detector.weights.trained import Trained, is_published, of_checkpoint, read_trained

# what a training needs to continue
PARTS = {"state_dict", "hyper_parameters", "optimizer_states", "loops", "callbacks"}
Found = tuple[Path, dict[str, Any]]  # a checkpoint and its content


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a training checkpoint of ours: tensors on the CPU and plain types. Nothing in
    the file is executed, whoever made it.

    Raises:
        InputError: "PATH: why": it is missing, damaged, or not a training checkpoint.
    """
    content = load_torch_file(path)
    if not content.keys() >= PARTS:
        raise InputError(
            f"{path}: not a training checkpoint of a detector (it has no"
            f" {min(PARTS - content.keys())}): give another one"
        )
    return content


def newest_valid(folder: Path) -> Found | None:
    """The first valid one of `last.ckpt`, `previous.ckpt`, and the others with the most training
    first; it prints a line for each that is passed over."""

    def order(path: Path) -> tuple[bool, bool, int]:
        steps = read_outline(path).get("global_step")
        rank = steps if isinstance(steps, int) else -1
        return path.name == "last.ckpt", path.name == "previous.ckpt", rank

    for path in sorted(folder.glob("*.ckpt"), key=order, reverse=True):
        try:
            return path, read_checkpoint(path)
        except InputError as e:
            rank_zero_print(f"warning: {e}; passed over")
    return None


def read_outline(path: Path) -> dict[str, Any]:
    """A training checkpoint, unchecked, its tensors not yet read from the file; {} if that cannot
    be done. Quick, whatever the size."""
    try:
        return load_torch_file(path, mmap=True, compare=False)
    except InputError:
        return {}


def find_trained(ckpt_path: str, run: Path | None) -> Trained | None:
    """Find and read what `--ckpt_path` means.

    Args:
        ckpt_path: `last`, the newest valid checkpoint of the run; `auto`, that or None, for a fresh
            start; `best`; a run folder, which means its best; a .ckpt file; or a .pt file of
            YOLOv5.
        run: default: the most recent fit.

    Raises:
        InputError: there is none; it says where it looked and what is wrong with what it found.
    """
    if ckpt_path not in ("last", "best", "auto"):
        if not is_published(ckpt_path) and not exists(ckpt_path):
            raise InputError(
                f"ckpt_path {ckpt_path}: no such file; give a checkpoint, a run folder, `last`,"
                " `best` or `auto`"
            )
        return read_trained(ckpt_path)
    folder, where = newest_folder(run)
    if folder is None:
        if ckpt_path == "auto":
            rank_zero_print(f"ckpt_path auto: no checkpoint in {where}, so this is a fresh start")
            return None
        raise InputError(
            f"ckpt_path {ckpt_path}: no checkpoint in {where}; give the path of one elsewhere, or"
            " start a run without --ckpt_path first"
        )
    if ckpt_path == "best":
        return read_trained(folder / "best.ckpt")
    found = newest_valid(folder)
    if found is None:
        raise InputError(f"ckpt_path {ckpt_path}: no intact checkpoint in {folder}")
    return of_checkpoint(*found)


def newest_folder(run: Path | None) -> tuple[Path | None, Path]:
    """The folder of checkpoints of a run, default: of the most recent fit, if it has any; and
    where it was looked for."""
    runs = [run] if run else numbered("fit").values()
    files = [file for each in runs for file in each.glob("checkpoints/*.ckpt")]
    newest = max(files, key=lambda file: file.stat().st_mtime_ns, default=None)
    return newest and newest.parent, (run or ROOT / "fit-*") / "checkpoints"


def newest_checkpoint(run: Path | None) -> str:
    """The `--ckpt_path` of who gives none: `best` or, without one, `last`.

    Args:
        run: default: the most recent fit.

    Raises:
        InputError: there is no run.
    """
    folder, where = newest_folder(run)
    if folder is None:
        raise InputError(
            f"no --ckpt_path is given, and there is no checkpoint in {where}: give one, or train"
            " with fit first"
        )
    return "best" if isfile(folder / "best.ckpt") else "last"
