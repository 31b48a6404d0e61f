"""Trouble for a training, and trainings to make it in: for the tests of the guard."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import torch
from made_options import made_detector
from plain_loop import CLIP
from torch import nn

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Batch
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.training.module import Detector

NAMES = ["disc", "ring", "star", "triangle", "cross"]


class Poison(L.Callback):
    """NaN in the images of some batches, given as (epoch, batch), each time or once; only in
    process `rank`, if given."""

    def __init__(
        self, *where: tuple[int, int], once: bool = False, rank: int | None = None
    ) -> None:
        self.where, self.once, self.rank, self.clean = list(where), once, rank, torch.zeros(0)
        self.seen: dict[tuple[int, int], list[int]] = {}  # images of each batch

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        key = trainer.current_epoch, batch_idx
        self.clean = batch.images.clone()
        self.seen[key] = batch.indices
        if key in self.where and self.rank in (None, trainer.global_rank):
            batch.images.fill_(torch.nan)
            if self.once:
                self.where.remove(key)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, out: Any, batch: Batch, idx: int
    ) -> None:
        batch.images.copy_(self.clean)


class BadGradient(L.Callback):
    """One parameter's gradient becomes infinite in some batches, while the loss is finite."""

    def __init__(self, name: str, *where: tuple[int, int]) -> None:
        self.name = name
        self.where = where

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        bad = (trainer.current_epoch, batch_idx) in self.where
        self.handle = pl_module.get_parameter(self.name).register_hook(
            lambda g: g * (torch.inf if bad else 1)
        )

    def on_train_batch_end(self, *_: Any) -> None:
        self.handle.remove()


def trainer_in(folder: Path, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    return L.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 2,
            "gradient_clip_val": CLIP,
            "callbacks": list(callbacks),
            "default_root_dir": folder,
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )


def detector_of_the_data(**options: Any) -> Detector:
    torch.manual_seed(0)
    return made_detector(
        NAMES,
        width_multiple=0.125,
        depth_multiple=0.1,
        levels=[5],
        image_size=64,
        batch_size=8,
        **{"optimizer": "SGD", "nominal_batch_size": 8, **options},
    )


def data_of(path: Path, **options: Any) -> DetectionData:
    """Three batches of eight images."""
    return DetectionData(
        str(path),
        image_size=64,
        batch_size=8,
        **{"workers": 0, "augment": Augment(mosaic=0.0), **options},
    )


def reports(folder: Path) -> dict[str, Any]:
    """Every report by file name, read by a parser that takes only what the standard allows."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = sorted((folder / "checkpoints").glob("incident-*.json"))
    return {p.name: json.loads(p.read_text(), parse_constant=refuse) for p in found}


def finite(module: nn.Module) -> bool:
    return all(
        bool(v.isfinite().all()) for v in module.state_dict().values() if v.is_floating_point()
    )
