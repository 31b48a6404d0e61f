"""Learning rates, momentum, accumulation and averaging as pure functions of the iteration."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

LrSchedule = Literal["linear", "cosine"]

ENOUGH_STEPS = 5000  # optimizer steps that a run should have, as far as its batches allow
FEWEST_STEPS = 300  # for as many, batches are smaller than usual (benchmarks/recipes.md)
BATCH_SIZES = (16, 8, 4)  # the usual one, and those of short runs


class Rates(NamedTuple):
    """What a batch is trained with.

    Attributes:
        lr: Learning rate, but of the biases.
        bias_lr: Learning rate of the biases.
        momentum: Of SGD; None: the optimizer keeps its own.
        accumulate: Batches per optimizer step.
    """

    lr: float
    bias_lr: float
    momentum: float | None
    accumulate: int


@dataclass(frozen=True)
class Schedule:
    """The rates of a training: warm-up, then a fall of the learning rate over the epochs.

    Attributes:
        epochs: Of the whole run.
        epoch_batches: Per epoch.
        lr0: Initial learning rate.
        lrf: The learning rate falls towards lr0 * lrf.
        lr_schedule: linear or cosine.
        momentum: After the warm-up.
        batches_per_step: Batches per optimizer step after the warm-up, before rounding.
        warmup_epochs: Length of the warm-up in epochs; 0: there is none.
        warmup_min_batches: Batches that it lasts at least, so that small datasets warm up at all,
            but for this no more than a third of the run.
        warmup_momentum: At iteration 0.
        warmup_bias_lr: At iteration 0.
        literal: As in YOLOv5: rates come one epoch late, and those of the end of the warm-up stay
            to the end of its epoch; it lasts `warmup_min_batches` whatever the run's length, even
            with warmup_epochs = 0.
    """

    epochs: int
    epoch_batches: int
    lr0: float
    lrf: float
    lr_schedule: LrSchedule
    momentum: float | None
    batches_per_step: float
    warmup_epochs: float
    warmup_min_batches: int
    warmup_momentum: float
    warmup_bias_lr: float
    literal: bool

    def warmup_batches(self) -> int:
        """The length of the warm-up in batches; 0: there is none."""
        length = round(self.warmup_epochs * self.epoch_batches)
        if self.literal:
            return max(length, self.warmup_min_batches)
        if self.warmup_epochs == 0:
            return 0
        third = self.epochs * self.epoch_batches // 3
        return max(length, min(self.warmup_min_batches, third))

    def lr(self, epoch: int) -> float:
        """The learning rate of an epoch (from 0) after the warm-up: a straight line, or half a
        cosine, from lr0 to lr0 * lrf at the end of the run."""
        if self.lr_schedule == "linear":
            factor = (1 - epoch / self.epochs) * (1 - self.lrf) + self.lrf
        else:
            factor = (1 - math.cos(math.pi * epoch / self.epochs)) / 2 * (self.lrf - 1) + 1
        return self.lr0 * factor

    def rates_at(self, iteration: int) -> Rates:
        """The rates of a batch, by its number in the run (from 0)."""
        epoch, batch = divmod(iteration, self.epoch_batches)
        warmup = self.warmup_batches()
        warmed_up = iteration - batch if self.literal else iteration
        if not warmup or warmed_up > warmup:
            lr = self.lr(max(epoch - int(self.literal), 0))
            return Rates(lr, lr, self.momentum, max(round(self.batches_per_step), 1))

        def warming(start: float, end: float) -> float:
            return float(np.interp(iteration, (0, warmup), (start, end)))

        lr = self.lr(epoch)
        momentum = None
        if self.momentum is not None:
            momentum = warming(self.warmup_momentum, self.momentum)
        return Rates(
            lr=warming(0.0, lr),
            bias_lr=warming(self.warmup_bias_lr, lr),
            momentum=momentum,
            accumulate=max(round(warming(1.0, self.batches_per_step)), 1),
        )


def accumulation(nominal_batch_size: int, batch_size: int) -> int:
    """Batches per optimizer step after the warm-up."""
    return max(round(nominal_batch_size / batch_size), 1)


def default_batch_size(images: int) -> int:
    """Images per batch, by the images that a run trains on, all epochs together: 16, or fewer where
    the run would have less than FEWEST_STEPS batches.

    >>> [default_batch_size(epochs * 100) for epochs in (48, 47, 24, 23)]
    [16, 8, 8, 4]
    """
    for batch_size in BATCH_SIZES:
        if images >= FEWEST_STEPS * batch_size:
            return batch_size
    return BATCH_SIZES[-1]


def fitting_batch_size(batch_size: int, batches: int) -> int:
    """Images per optimizer step, by the length of the run: 64, as in YOLOv5, or fewer where the run
    would have less than ENOUGH_STEPS steps. They are whole batches, and at least as many images as
    `default_batch_size` says, which train well at the learning rate of 64.

    Args:
        batch_size: Images per batch.
        batches: Batches of the whole run.

    >>> fitting_batch_size(16, 13 * 30)
    16
    >>> fitting_batch_size(16, 10_000)
    32
    >>> fitting_batch_size(16, 1_000_000)
    64
    >>> fitting_batch_size(4, 100)
    4
    >>> fitting_batch_size(4, 10_000)
    16
    >>> fitting_batch_size(128, 100)
    128
    """
    fewest = accumulation(default_batch_size(batch_size * batches), batch_size)
    most = accumulation(64, batch_size)
    return batch_size * min(max(batches // ENOUGH_STEPS, fewest), most)


def effective_weight_decay(weight_decay: float, nominal_batch_size: int, batch_size: int) -> float:
    """Weight decay scaled with the number of images that a step really uses."""
    return (
        weight_decay
        * batch_size
        * accumulation(nominal_batch_size, batch_size)
        / nominal_batch_size
    )


def ema_decay(updates: int, decay: float = 0.9999, tau: float = 2000.0) -> float:
    """Share of the old average that update number `updates` (from 1) keeps: small at first, `decay`
    in the end."""
    return decay * (1 - math.exp(-updates / tau))


def power_decay(updates: int, exponent: float) -> float:
    """Share of the old average that update number `updates` (from 1) keeps, 0 in the first.

    The average always reaches over the same share of the training so far (Karras et al. 2023, arXiv
    2312.02696, section 3.1): with gamma for the exponent, the standard deviation of its weights is
    the width of (gamma + 1) = width^2 (gamma + 2)^2 (gamma + 3).
    """
    return (1 - 1 / updates) ** (exponent + 1)
