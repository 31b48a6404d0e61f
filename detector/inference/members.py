"""The files that predict, alone or together, and the classes that each knows."""

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
    """See `Predictor.load`: what the file says, and what predicts: its network, or the exported
    file itself.

    Raises:
        InputError: no such file, or not a detector.
    """
    if format_of(path):
        file = load_exported(path)
        return file, file
    trained = find_trained(str(path), run)
    if trained is None:
        raise InputError("ckpt_path auto is for fit; give `last`, `best` or a file")
    return trained, trained.network.to(device).to(memory_format=torch.channels_last).eval()


def load_ensemble(files: Sequence[str | Path], names: Sequence[str]) -> list[YOLOv5 | Exported]:
    """The networks or exported files that are evaluated together with one of the classes `names`.

    Raises:
        InputError: no such file, not a detector, or it has other classes.
    """
    members = []
    for file in files:
        found, member = load_member(file, torch.device("cpu"))
        check_names(found.names, names, file)
        print_fact("ensemble", found.path)
        members.append(member)
    return members


def check_names(names: Sequence[str], wanted: Sequence[str], file: object) -> None:
    """Raises InputError unless a file's classes are those of the others, in the same order."""
    for i, (a, b) in enumerate(zip_longest(wanted, names)):
        if a != b:
            raise InputError(
                f"{file}: it has other classes: class {i} is {a!r} here and {b!r} there"
            )


def in_classes(rows: Rows, known: Sequence[str], names: Sequence[str]) -> Rows:
    """A member's rows with the columns of all classes `names`; those that it does not know are 0.

    Args:
        rows: gives (B, R, 5 + K).
        known: the K classes of the member, which may be in another order.
    """
    if list(known) == list(names):
        return rows
    here, there = zip(*same_names(known, names).items(), strict=True)

    def in_all(images: torch.Tensor) -> torch.Tensor:
        own = rows(images)
        made = own.new_zeros(*own.shape[:2], 5 + len(names))
        made[..., :5] = own[..., :5]
        # a single class is not learned: objectness says it all
        scores = own[..., 5:] if len(known) > 1 else torch.ones_like(own[..., 5:])
        made[..., [5 + k for k in here]] = scores[..., list(there)]
        return made

    return in_all


def device_of(name: str | torch.device | None) -> torch.device:
    """By its name, or a GPU by its number; None: the first GPU, if there is one."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(f"cuda:{name}" if str(name).isdecimal() else name or default)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise InputError(f"device {name}: there is none of this name ({in_one_line(e)})") from None
    return device
