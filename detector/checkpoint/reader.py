"""Checkpoint files: reading one, the newest valid one of a folder, and what `--ckpt_path` means."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import exists, isfile
from pathlib import Path
from typing import Any, NamedTuple

from boltbox.detector.checkpoint.runs import ROOT, fits
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.torch_file import load_torch_file
from boltbox.detector.weights.trained import (
    TRAINING_PARTS,
    Trained,
    is_published,
    of_checkpoint,
    read_trained,
)

CKPT_WORDS = ("last", "best", "auto")  # that `--ckpt_path` takes instead of a path


class Checkpoint(NamedTuple):
    """A training checkpoint that was read.

    Attributes:
        path: The file.
        content: What it holds: tensors on the CPU and plain types.
    """

    path: Path
    content: dict[str, Any]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a training checkpoint: tensors on the CPU and plain types. Nothing in the file
    is executed, whoever made it.

    Args:
        path: The file.

    Returns:
        What it holds.

    Raises:
        InputError: "PATH: why": it is missing, damaged, or not a training checkpoint.
    """
    content = load_torch_file(path)
    missing = TRAINING_PARTS - content.keys()
    if missing:
        raise InputError(
            f"{path}: not a training checkpoint of a detector (it has no {min(missing)}): give"
            " another one"
        )
    return content


def newest_valid(folder: Path) -> Checkpoint | None:
    """The first valid one of `last.ckpt`, `previous.ckpt`, and the others with the most training
    first; it prints a line for each that is passed over.

    Args:
        folder: Of the checkpoints.

    Returns:
        The checkpoint; None: no file is valid.
    """

    for path in _newest_first(folder):
        try:
            return Checkpoint(path, read_checkpoint(path))
        except InputError as e:
            rank_zero_print(f"warning: {e}; passed over")
    return None


def _newest_first(folder: Path) -> Iterator[Path]:
    """The checkpoints of a folder; those after `previous.ckpt` are opened only when one is asked
    for."""
    files = sorted(folder.glob("*.ckpt"))
    for name in ("last.ckpt", "previous.ckpt"):
        if folder / name in files:
            files.remove(folder / name)
            yield folder / name

    def steps(path: Path) -> int:
        trained = read_outline(path).get("global_step")
        return trained if isinstance(trained, int) else -1

    yield from sorted(files, key=steps, reverse=True)


def read_outline(path: Path) -> dict[str, Any]:
    """A training checkpoint, unchecked, its tensors not yet read from the file; {} if that cannot
    be done. Quick, whatever the size.

    Args:
        path: The file.
    """
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
        run: The run; default: the most recent fit.

    Raises:
        InputError: there is none; it says where it looked and what is wrong with what is there.
    """
    if ckpt_path not in CKPT_WORDS:
        if not is_published(ckpt_path) and not exists(ckpt_path):
            raise InputError(
                f"ckpt_path {ckpt_path}: no such file; give a checkpoint, a run folder, `last`,"
                " `best` or `auto`"
            )
        return read_trained(ckpt_path)
    folder, searched = newest_folder(run)
    if folder is None:
        if ckpt_path == "auto":
            rank_zero_print(
                f"ckpt_path auto: no checkpoint in {searched}, so this is a fresh start"
            )
            return None
        raise InputError(
            f"ckpt_path {ckpt_path}: no checkpoint in {searched}; give the path of one elsewhere,"
            " or start a run without --ckpt_path first"
        )
    if ckpt_path == "best":
        return read_trained(folder / "best.ckpt")
    newest = newest_valid(folder)
    if newest is None:
        raise InputError(f"ckpt_path {ckpt_path}: no intact checkpoint in {folder}")
    return of_checkpoint(*newest)


def newest_folder(run: Path | None) -> tuple[Path | None, Path]:
    """Find the checkpoints of a run.

    Args:
        run: The run; default: the most recent fit.

    Returns:
        The folder of its checkpoints, None if it has none; and where they were searched.
    """
    runs = [run] if run else fits()
    searched = (run if run else ROOT / "*") / "checkpoints"
    files: list[Path] = []
    for each in runs:
        files += each.glob("checkpoints/*.ckpt")
    if not files:
        return None, searched
    newest = max(files, key=lambda file: file.stat().st_mtime_ns)
    return newest.parent, searched


def newest_checkpoint(run: Path | None) -> str:
    """The `--ckpt_path` if none is given: `best` or, without one, `last`.

    Args:
        run: The run; default: the most recent fit.

    Raises:
        InputError: there is no run.
    """
    folder, searched = newest_folder(run)
    if folder is None:
        raise InputError(
            f"no --ckpt_path is given, and there is no checkpoint in {searched}: give one, or train"
            " with fit first"
        )
    return "best" if isfile(folder / "best.ckpt") else "last"
