"""Learning rate, length of the warm-up and accumulation as pure functions of the run's length and
the epoch."""

import math
from typing import Literal

LrSchedule = Literal["linear", "cosine"]

ENOUGH_STEPS = 5000  # optimizer steps that a run should have, as far as its batches allow


def lr_factor(epoch: int, epochs: int, lrf: float, schedule: LrSchedule = "linear") -> float:
    """The share of lr0 in an epoch, falling from 1 to `lrf` at the end of the run.

    Args:
        epoch: from 0. epochs: of the whole run.
        schedule: a straight line, or half a cosine.
    """
    if schedule == "linear":
        return (1 - epoch / epochs) * (1 - lrf) + lrf
    return (1 - math.cos(math.pi * epoch / epochs)) / 2 * (lrf - 1) + 1


def warmup_iterations(
    warmup_epochs: float, batches: int, epochs: int, least: int = 100, literal: bool = False
) -> int:
    """The iteration at which warm-up ends.

    It lasts `warmup_epochs` of `batches` iterations, but at least `least` iterations, so that small
    data sets warm up at all; this lower bound in turn takes no more than a third of the run, and
    nothing if warmup_epochs is 0.

    Args:
        literal: As in YOLOv5: at least `least` iterations whatever the run's length, even with
            warmup_epochs = 0.
    """
    wanted = round(warmup_epochs * batches)
    if literal:
        return max(wanted, least)
    return max(wanted, min(least, batches * epochs // 3)) if warmup_epochs > 0 else 0


def accumulation(nominal_batch_size: int, batch_size: int) -> int:
    """Batches per optimizer step after warm-up."""
    return max(round(nominal_batch_size / batch_size), 1)


def fitting_batch_size(batch_size: int, batches: int) -> int:
    """Images a step for a run of this many batches: 64, as in YOLOv5, or fewer where the run would
    have less than ENOUGH_STEPS steps: whole batches, and at least 16 images, whose learning rate is
    still that of 64.

    >>> fitting_batch_size(16, 13 * 30), fitting_batch_size(16, 10_000), fitting_batch_size(16, 1_000_000)
    (16, 32, 64)
    >>> fitting_batch_size(4, 100), fitting_batch_size(128, 100)
    (16, 128)
    """  # noqa: E501
    least, most = (accumulation(images, batch_size) for images in (16, 64))
    return batch_size * min(max(batches // ENOUGH_STEPS, least), most)


def effective_weight_decay(weight_decay: float, nominal_batch_size: int, batch_size: int) -> float:
    """Weight decay scaled with the number of images that a step really sees."""
    return (
        weight_decay
        * batch_size
        * accumulation(nominal_batch_size, batch_size)
        / nominal_batch_size
    )


def ema_decay(updates: int, decay: float = 0.9999, tau: float = 2000.0) -> float:
    """Share of the old average kept in update number `updates` (from 1): small at first, `decay` in
    the end."""
    return decay * (1 - math.exp(-updates / tau))


def power_decay(updates: int, exponent: float) -> float:
    """Share of the old average kept in update number `updates` (from 1), 0 in the first: the
    average always reaches over the same share of the training so far (Karras et al. 2023, arXiv
    2312.02696, section 3.1). With gamma for the exponent, the standard deviation of its weights is
    the width of (gamma + 1) = width^2 (gamma + 2)^2 (gamma + 3)."""
    return (1 - 1 / updates) ** (exponent + 1)
