"""The files that predict, alone or together, and the classes of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import torch

from boltbox.detector.checkpoint.reader import find_trained
from boltbox.detector.data.class_names import same_names
from boltbox.detector.inference.exported import Exported, format_of, load_exported
from boltbox.detector.inference.tta import Rows
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.weights.trained import Trained


def load_member(
    path: str | Path, device: torch.device, run: Path | None = None
) -> tuple[Trained | Exported, YOLOv5 | Exported]:
    """Read a file that predicts.

    Args:
        path: See `Predictor.load`.
        device: Of a network.
        run: Folder of `last` and `best`.

    Returns:
        What the file says, and what predicts: its network, or the exported file itself.

    Raises:
        InputError: There is no such file, or it is no detector.
    """
    if format_of(path):
        file = load_exported(path)
        return file, file
    trained = find_trained(str(path), run)
    if trained is None:
        raise InputError("ckpt_path auto is for fit. Give `last`, `best` or a file")
    return trained, trained.network.to(device).to(memory_format=torch.channels_last).eval()


def load_ensemble(files: Sequence[str | Path], names: Sequence[str]) -> list[YOLOv5 | Exported]:
    """Networks or exported files to evaluate together with another one.

    Args:
        files: See `Predictor.load`.
        names: Classes of the other one.

    Raises:
        InputError: There is no such file, it is no detector, or has other classes.
    """
    members = []
    for file in files:
        loaded, member = load_member(file, torch.device("cpu"))
        check_names(loaded.names, names, file)
        print_fact("ensemble", loaded.path)
        members.append(member)
    return members


def check_names(names: Sequence[str], expected: Sequence[str], file: object) -> None:
    """Raises InputError unless a file's classes are the expected ones, in the same order."""
    for i, (name, other) in enumerate(zip_longest(names, expected)):
        if name != other:
            raise InputError(
                f"{file}: it has other classes: class {i} is {other!r} here and {name!r} there"
            )


def in_classes(rows: Rows, known: Sequence[str], names: Sequence[str]) -> Rows:
    """A member's rows with the columns of all classes; those of other members are 0.

    Args:
        rows: Returns (B, R, 5 + K).
        known: The K classes of the member.
        names: All classes.
    """
    if list(known) == list(names):
        return rows
    shared = same_names(known, names)
    columns_here = [5 + k for k in shared]
    columns_there = list(shared.values())

    def in_all(images: torch.Tensor) -> torch.Tensor:
        own = rows(images)
        scores = own[..., 5:]
        if len(known) == 1:  # the score of a single class is not trained: objectness says it all
            scores = torch.ones_like(scores)
        united = own.new_zeros(*own.shape[:2], 5 + len(names))
        united[..., :5] = own[..., :5]
        united[..., columns_here] = scores[..., columns_there]
        return united

    return in_all


def device_of(name: str | torch.device | None) -> torch.device:
    """By its name, or a GPU by its number; None: the first GPU, if there is one."""
    if not name:
        place = "cuda" if torch.cuda.is_available() else "cpu"
    else:
        place = f"cuda:{name}" if str(name).isdecimal() else str(name)
    try:
        device = torch.device(place)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise InputError(f"device {name}: there is none of this name ({in_one_line(e)})") from None
    return device
