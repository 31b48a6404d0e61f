"""Checkpoint files: reading one, the newest valid one of a folder, and what `--ckpt_path` means."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from typing import Any

from boltbox.detector.checkpoint.runs import ROOT, checkpoints_of, has_checkpoints, numbered
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


def newest_valid(folder: Path) -> tuple[Found | None, list[str]]:
    """The first valid one of `last.ckpt`, `previous.ckpt`, and the others with the most training
    first; and a line for each that is passed over."""

    def order(path: Path) -> tuple[bool, bool, int]:
        return path.name == "last.ckpt", path.name == "previous.ckpt", _steps(path)

    skipped: list[str] = []
    for path in sorted(folder.glob("*.ckpt"), key=order, reverse=True):
        try:
            return (path, read_checkpoint(path)), skipped
        except InputError as e:
            skipped.append(f"{e}; passed over")
    return None, skipped


def read_outline(path: Path) -> dict[str, Any]:
    """A training checkpoint, unchecked, its tensors not yet read from the file; {} if that cannot
    be done. Quick, whatever the size."""
    try:
        return load_torch_file(path, mmap=True)
    except InputError:
        return {}


def _steps(path: Path) -> int:
    """Optimizer steps behind a checkpoint, by its own account."""
    steps = read_outline(path).get("global_step")
    return steps if isinstance(steps, int) else -1


def find_trained(ckpt_path: str, run: Path | None) -> Trained | None:
    """Find and read what `--ckpt_path` means.

    Args:
        ckpt_path: `last`, the newest valid checkpoint of the run; `auto`, that or None, for a fresh
            start; `best`; a .ckpt file; or a .pt file of YOLOv5.
        run: default: the most recent fit.

    Raises:
        InputError: there is none; it says where it looked and what is wrong with what it found.
    """
    if is_published(ckpt_path):
        return read_trained(ckpt_path)
    if ckpt_path not in ("last", "best", "auto"):
        if not isfile(ckpt_path):
            raise InputError(
                f"ckpt_path {ckpt_path}: no such file; give a checkpoint, `last`, `best` or `auto`"
            )
        return _trained(Path(ckpt_path))
    with_checkpoints = [r for r in ([run] if run else numbered("fit")) if has_checkpoints(r)]
    if not with_checkpoints:
        where = checkpoints_of(run or ROOT / "fit-*")
        if ckpt_path == "auto":
            rank_zero_print(f"ckpt_path auto: no checkpoint in {where}, so this is a fresh start")
            return None
        raise InputError(
            f"ckpt_path {ckpt_path}: no checkpoint in {where}; start a run without --ckpt_path"
            " first"
        )
    folder = checkpoints_of(max(with_checkpoints, key=_written))
    if ckpt_path == "best":
        return _trained(folder / "best.ckpt")
    found, skipped = newest_valid(folder)
    for line in skipped:
        rank_zero_print(f"warning: {line}")
    if found is None:
        raise InputError(f"ckpt_path {ckpt_path}: no intact checkpoint in {folder}")
    if skipped or ckpt_path == "auto":
        rank_zero_print(f"ckpt_path {ckpt_path}: resuming from {found[0]}")
    return of_checkpoint(*found)


def _trained(path: Path) -> Trained:
    try:
        return of_checkpoint(path, read_checkpoint(path))
    except InputError as e:
        raise InputError(f"ckpt_path {e}") from None


def _written(run: Path) -> int:
    """When the newest checkpoint of a run was written, in ns."""
    return max(path.stat().st_mtime_ns for path in checkpoints_of(run).glob("*.ckpt"))
