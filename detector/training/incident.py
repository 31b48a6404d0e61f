"""What went wrong in a training: the error, its message, the report."""

import contextlib
import itertools
import json
import math
import re
import traceback
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lightning as L
import torch

from boltbox.detector.data.loading.sampler import GivenBatches, TrainBatches
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.rank_zero import rank_zero_print

Kind = Literal[
    "non-finite loss",
    "non-finite gradient",
    "out of memory",
    "data loader",
    "worker killed",
    "other",
]

ADVICE: dict[Kind, str] = {
    "non-finite loss": "look at these images and their labels, or lower model.optim.lr0",
    "non-finite gradient": "lower model.optim.lr0, or use --trainer.precision 32-true",
    "out of memory": (
        "use a smaller data.batch_size (in validation: data.val_batch_size) or data.image_size"
    ),
    "data loader": "put the image right or leave it out; the report holds the loader's own words",
    "worker killed": (
        "no image is at fault: the system ends a loader's process where memory runs out; use fewer"
        " data.workers"
    ),
    "other": "the report holds the traceback",
}


class Incident(InputError):
    """Training cannot continue. The message names the problem, the batch, the images, and what to
    do.

    Attributes:
        report: the JSON file; None if there is none.
    """

    def __init__(self, sentence: str, report: Path | None = None) -> None:
        super().__init__(sentence)
        self.report = report


class RollBack(Incident):
    """To be continued from the last checkpoint: `boltbox.detector.training.roll_back.fit` does so.

    When the most_roll_backs of the TrainingGuard are used up it raises an Incident that is no
    RollBack. All processes raise it in the same batch.
    """


class Place(NamedTuple):
    """A batch: `train` or `val`; its number in the epoch; the data set's numbers of its images, as
    far as they are known."""

    split: str
    batch: int
    indices: list[int]


def place_between_batches(trainer: L.Trainer, upcoming: bool) -> Place:
    """The place between two batches.

    Args:
        upcoming: the next batch, which is being loaded; else the last one.
    """
    training: Any = trainer.fit_loop.epoch_loop
    split, loop, loader = "train", training, trainer.train_dataloader
    if trainer.validating:
        split, loop, loader = "val", training.val_loop, trainer.val_dataloaders
    batch = loop.batch_progress.current.ready - int(not upcoming)
    sampler, batches = getattr(loader, "batch_sampler", None), []
    if upcoming and isinstance(sampler, TrainBatches):
        batches = [
            [key.index for key in keys[sampler.rank :: sampler.world]]
            for keys in sampler.batches(trainer.current_epoch)
        ]
    elif upcoming and isinstance(sampler, GivenBatches):
        batches = sampler.own
    return Place(split, max(batch, 0), batches[batch] if batch < len(batches) else [])


def kind_of(crash: BaseException) -> Kind:
    """The kind of a crash, by its type, its message, and whether a DataLoader raised it."""
    text = str(crash)
    no_memory = any(phrase in text.lower() for phrase in ("out of memory", "can't allocate memory"))
    if isinstance(crash, torch.OutOfMemoryError) or (
        isinstance(crash, RuntimeError | InputError) and no_memory
    ):
        return "out of memory"
    if re.search(r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)", text):
        return "worker killed"
    modules = {
        frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(crash.__traceback__)
    }
    return (
        "data loader"
        if "torch.utils.data.dataloader" in modules or "DataLoader worker" in text
        else "other"
    )


def sentence(
    trainer: L.Trainer,
    kind: Kind,
    place: Place,
    report: Path | None,
    done: str = "",
    crash: BaseException | None = None,
) -> str:
    """One line for the user: the problem, the batch, the first three images, what was done, the
    path of the report."""
    files = _files(trainer, place)
    parts = [
        (
            f"{kind} in epoch {trainer.current_epoch},"
            f" {'validation ' if place.split == 'val' else ''}batch {place.batch}"
        ),
        (
            (
                in_one_line(crash)
                if isinstance(crash, InputError)
                else str(crash).strip().rpartition("\n")[2]
            )
            if crash
            else ""
        ),
        (
            "images"
            f" {', '.join(files[:3])}{f' and {len(files) - 3} more' if len(files) > 3 else ''}"
            if files
            else ""
        ),
        done,
        f"report: {report}" if report else "",
    ]
    return "; ".join(part for part in parts if part)


def write_report(trainer: L.Trainer, kind: Kind, place: Place, **extra: Any) -> Path | None:
    """Write `checkpoints/incident-<epoch>-<batch>.json`, in another process than the first
    `...-process<number>.json`; None if it cannot be written. Strictly JSON: numbers that are not
    finite are the strings nan, inf, -inf.

    kind · split, epoch, batch (both from 0), global_step · indices, files: numbers and names of the
    batch's images, where a mosaic stands under its first · window: numbers of the images whose
    gradients had been collected before · losses: box, obj, cls · groups: name, lr, momentum of the
    optimizer's · grad_scale: the GradScaler's · exception, traceback · parameters: the first ten
    whose gradients are not finite · processes: whose images and losses these are · policy, done,
    roll_backs · config: path of config.yaml.
    """
    folder = Path(trainer.default_root_dir)
    process = f"-process{trainer.global_rank}" if trainer.global_rank else ""
    path = _free(
        folder / "checkpoints" / f"incident-{trainer.current_epoch}-{place.batch}{process}.json"
    )
    content: dict[str, Any] = {
        "kind": kind,
        "split": place.split,
        "epoch": trainer.current_epoch,
        "batch": place.batch,
        "global_step": trainer.global_step,
        "indices": place.indices,
        "files": _files(trainer, place),
        "window": [],
        "losses": None,
        "groups": [
            _group(group)
            for optimizer in trainer.optimizers[:1]
            for group in optimizer.param_groups
        ],
        "grad_scale": None,
        "exception": None,
        "traceback": None,
        "parameters": [],
        "processes": [trainer.global_rank],
        **extra,
        "config": str(folder / "config.yaml"),
    }
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is not None:
        with contextlib.suppress(RuntimeError):  # the device has crashed
            content["grad_scale"] = scaler.get_scale()
    try:
        write_atomically(
            path,
            lambda file: file.write(
                json.dumps(_strict(content), indent=1, allow_nan=False).encode()
            ),
        )
    except OSError as e:
        rank_zero_print(f"warning: {path} could not be written ({e})")
        return None
    return path


def _files(trainer: L.Trainer, place: Place) -> list[str]:
    data: Any = getattr(trainer, "datamodule", None)
    return [str(data.path(place.split, i)) for i in place.indices] if hasattr(data, "path") else []


def _group(group: dict[str, Any]) -> dict[str, Any]:
    momentum = group["momentum"] if "momentum" in group else group.get("betas", [None])[0]
    return {"name": group.get("name"), "lr": group["lr"], "momentum": momentum}


def _free(path: Path) -> Path:
    """The path itself, or with -2, -3, ... after its stem, for the same batch again after a
    roll-back."""
    names = itertools.chain(
        [path], (path.with_stem(f"{path.stem}-{i}") for i in itertools.count(2))
    )
    return next(p for p in names if not p.exists())


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_strict(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
