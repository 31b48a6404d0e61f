"""What a Detector expects of its Trainer: data, and the callbacks of the recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning as L
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.optimizer import OptimOptions

OPTIMIZER_RULES = {"AdamW": " (auto: for pretrained weights)", "Muon": " (auto: from scratch)"}
FEW_STEPS = 200  # a run with fewer gains by smaller batches (docs/recipe.md)


def data_of(trainer: L.Trainer, without: str = "") -> DetectionData | None:
    """The data module of a Trainer; None: the data are the user's own, and what is left `without`
    it is printed."""
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, DetectionData):
        return data
    if without:
        rank_zero_print(f"data of your own: {without}")
    return None


def global_batch_size(trainer: L.Trainer) -> int | None:
    """Images a batch, over all devices, of the user's own training data; None: it is not known.

    Raises:
        InputError: they have no length, or are not divided among the devices.
    """
    trainer.fit_loop.setup_data()
    loader: Any = trainer.train_dataloader
    if trainer.num_training_batches == math.inf:
        raise InputError(
            "data of your own: the training data have no length; give the Trainer"
            " limit_train_batches=N, the batches of an epoch"
        )
    sampler: Any = getattr(loader, "batch_sampler", None)
    order = getattr(sampler, "sampler", None) if type(sampler) is BatchSampler else None
    if trainer.world_size > 1 and isinstance(order, RandomSampler | SequentialSampler):
        raise InputError(
            "data of your own: each of the devices would train on all of them; give the Trainer"
            " use_distributed_sampler=True"
        )
    images = getattr(sampler, "batch_size", None)
    return images and images * trainer.world_size


def print_optimizer(
    optim: OptimOptions, auto_names: Sequence[str], steps: int, images: int
) -> None:
    """Print what a run trains with, which rule chose it, and what may be wrong with it.

    Args:
        optim: The options, none of them left open.
        auto_names: Options that were left to be chosen.
        steps: Optimizer steps of the whole run.
        images: Images per step.
    """
    name = optim.optimizer_name
    lr0 = optim.lr0 or 0.0
    rule = OPTIMIZER_RULES.get(name, "") if "optimizer" in auto_names else ""
    text = f"{name}{rule}, lr0 {lr0:g} ({optim.lr_schedule})"
    if optim.backbone_lr is not None:
        text += f", backbone {optim.backbone_lr:g}"
    text += f", {steps} steps of {images} images"
    if optim.nominal_batch_size == "auto" and images < 64:
        text += " (auto: 64 in a longer run)"
    print_fact("optimizer", text)
    if lr0 >= 10 * optim.rates.lr0 and name != "SGD":
        print_fact("hint", f"lr0 {lr0:g} suits SGD; the default of {name} is {optim.rates.lr0:g}")
    if steps < FEW_STEPS and images > 8:
        print_fact(
            "hint",
            f"{steps} optimizer steps are few; for more, lower data.batch_size and"
            " model.optim.nominal_batch_size, or train longer",
        )


def print_missing(trainer: L.Trainer) -> None:
    """Print a line on the callbacks of the recipe that change what is trained and that a fit with
    this Trainer lacks, if it lacks any. One that is switched off is not missing."""
    names = {kind.__name__ for callback in trainer.callbacks for kind in type(callback).__mro__}  # type: ignore[attr-defined]
    missing = [name for name in ("Warmup", "EMA", "AutoAnchor") if name not in names]
    if missing:
        rank_zero_print(
            f"not the whole recipe: {', '.join(missing)} of boltbox.callbacks are missing;"
            " L.Trainer(**boltbox.callbacks.recipe(...)) has all of it: docs/python.md"
        )
