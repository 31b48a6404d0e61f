"""Warm-up of learning rate, momentum and accumulation."""

import math
from typing import Any

import lightning as L
import numpy as np

from boltbox.detector.system.ranges import BelowOne, NonNegativeFloat
from boltbox.detector.training.module import Detector
from boltbox.detector.training.optimizer import set_rates
from boltbox.detector.training.recipe import print_optimizer
from boltbox.detector.training.schedule import accumulation, warmup_iterations


class Warmup(L.Callback):
    """Sets lr of each group, momentum and the accumulation window before every batch of the
    warm-up, the window also after it.

    Put it before a LearningRateMonitor, which then logs the rates that are used.

    Args:
        warmup_epochs: Length in epochs; 0 is off.
        warmup_momentum: SGD's momentum at the start; Adam's beta1 stays.
        warmup_bias_lr: Learning rate of the biases at the start; the others start from 0. Default:
            SGD 0.1, else 0.

    The warm-up takes at least 100 iterations (Muon: 0), as far as these are no more than a third of
    the run. With model.literal the minimum holds for short runs and warmup_epochs 0 too, and
    gradients of a window that is open at the end of an epoch are discarded.
    """

    def __init__(
        self,
        warmup_epochs: NonNegativeFloat = 3.0,
        warmup_momentum: BelowOne = 0.8,
        warmup_bias_lr: NonNegativeFloat | None = None,
    ) -> None:
        self.warmup_epochs, self.warmup_momentum, self.warmup_bias_lr = (
            warmup_epochs,
            warmup_momentum,
            warmup_bias_lr,
        )
        self.nominal = 64  # images a step after warm-up, once a training has begun

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        batches, epochs = int(trainer.num_training_batches), trainer.max_epochs or 1
        self.nominal = pl_module.optim.effective_batch_size(pl_module.batch_size, batches * epochs)
        window = accumulation(self.nominal, pl_module.batch_size)
        steps = math.ceil(batches / window) * epochs
        images = pl_module.batch_size * window
        print_optimizer(pl_module.optim, pl_module.auto_names, steps, images)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Detector, batch: Any, batch_idx: int
    ) -> None:
        batches = int(trainer.num_training_batches)
        iteration = trainer.current_epoch * batches + batch_idx
        rates, momentum = pl_module.optim.rates, pl_module.optim.momentum
        least = rates.warmup_min_iterations
        last = warmup_iterations(
            self.warmup_epochs, batches, trainer.max_epochs or 1, least, pl_module.literal
        )
        accumulate = accumulation(self.nominal, pl_module.batch_size)
        # in YOLOv5 its last rates stay to the end of the epoch
        until = iteration - batch_idx if pl_module.literal else iteration
        if until <= last and last > 0:

            def line(start: float, end: float) -> float:
                """From iteration 0 to the last, both included."""
                return float(np.interp(iteration, (0, last), (start, end)))

            lr = pl_module.lr_of_epoch(trainer.current_epoch)
            bias_lr = rates.warmup_bias_lr if self.warmup_bias_lr is None else self.warmup_bias_lr
            set_rates(
                trainer.optimizers[0],
                line(0.0, lr),
                momentum and line(self.warmup_momentum, momentum),
                line(bias_lr * pl_module.lr_scale, lr),
            )
            accumulate = max(1, round(line(1, self.nominal / pl_module.batch_size)))
        is_last = trainer.is_last_batch and not pl_module.literal
        pl_module.window.start_batch(trainer, accumulate, is_last)
