"""Learning rates, momentum and accumulation of every batch."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import BelowOne, NonNegativeFloat
from boltbox.detector.training.module import Detector
from boltbox.detector.training.schedule import Schedule
from boltbox.detector.training.trainer_options import NO_STEP, check_recipe


class Warmup(L.Callback):
    """Sets learning rates, momentum and accumulation before every batch of the run: those of the
    warm-up, then those of `model.optim.lr_schedule`. Do not add a scheduler.

    The warm-up takes at least 100 batches (with Muon there is no minimum), but no more than a third
    of the run. warmup_epochs 0 turns it off.

    With model.literal (the quirks of YOLOv5 too) the minimum of 100 batches also holds with
    warmup_epochs 0 and in a short run, and the gradients of an accumulation window (the batches of
    one optimizer step) that is open at the end of an epoch are discarded.

    It is a callback and no scheduler, because momentum and accumulation change with the rates, and
    per batch, not per step.

    Put it before a LearningRateMonitor, which then logs the rates that are used.

    Args:
        warmup_epochs: Length in epochs; 0 is off.
        warmup_momentum: SGD's momentum at the start; Muon's momentum and Adam's beta1 do not
            change.
        warmup_bias_lr: Learning rate of the biases at the start; the others start from 0. Default:
            SGD 0.1, else 0.
    """

    def __init__(
        self,
        warmup_epochs: NonNegativeFloat = 3.0,
        warmup_momentum: BelowOne = 0.8,
        warmup_bias_lr: NonNegativeFloat | None = None,
    ) -> None:
        self.warmup_epochs = warmup_epochs
        self.warmup_momentum = warmup_momentum
        self.warmup_bias_lr = warmup_bias_lr
        self._window_batches = 0  # batches counted in the open window
        self._schedule: Schedule | None = None

    def setup(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        self._window_batches = 0  # not those of an earlier fit
        if stage != "fit":
            return
        given = trainer.accumulate_grad_batches
        if given != NO_STEP:  # an earlier fit may have left that, see on_train_batch_start
            check_recipe({"accumulate_grad_batches": given})  # refuses any value but 1
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GradientAccumulationScheduler | StochasticWeightAveraging):
                raise InputError(
                    f"{type(callback).__name__} and Warmup both set how batches are trained: leave"
                    " it out, or use a Trainer without boltbox.callbacks.Warmup"
                )
        if (trainer.max_epochs or 0) < 1:
            raise InputError(
                "trainer.max_epochs must be a positive number: the learning rate falls over the"
                " whole run"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        assert trainer.max_epochs is not None
        optim = pl_module.options.optim
        defaults = optim.defaults  # of the chosen optimizer
        epochs = trainer.max_epochs
        epoch_batches = int(trainer.num_training_batches)
        bias_lr = self.warmup_bias_lr
        if bias_lr is None:
            bias_lr = defaults.warmup_bias_lr
        # images per optimizer step; fewer in a short run, so that it has enough steps
        effective_batch_size = optim.effective_batch_size(
            pl_module.batch_size, epoch_batches * epochs
        )
        self._schedule = Schedule(
            epochs=epochs,
            epoch_batches=epoch_batches,
            lr0=pl_module.lr,  # optim.lr0, chosen by now if it was left open
            lrf=optim.lrf,
            lr_schedule=optim.lr_schedule,
            momentum=optim.momentum,
            batches_per_step=effective_batch_size / pl_module.batch_size,
            warmup_epochs=self.warmup_epochs,
            warmup_min_batches=defaults.warmup_min_batches,
            warmup_momentum=self.warmup_momentum,
            warmup_bias_lr=bias_lr,
            literal=pl_module.options.literal,
        )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Detector, batch: Any, batch_idx: int
    ) -> None:
        assert self._schedule is not None
        # counts batches, while trainer.global_step counts optimizer steps
        iteration = trainer.current_epoch * self._schedule.epoch_batches + batch_idx
        rates = self._schedule.rates_at(iteration)
        for group in trainer.optimizers[0].param_groups:
            lr = rates.bias_lr if group["name"].endswith("bias") else rates.lr
            group["lr"] = lr * group["lr_share"]  # lr_share: 1, except for a backbone's own rate
            # SGD's groups have it, those of Adam and of our Muon have betas; rates.momentum is None
            # with a custom optimizer
            if "momentum" in group and rates.momentum is not None:
                group["momentum"] = rates.momentum
        # The epoch's last batch closes the window, however short. Not with literal, as in YOLOv5:
        # the window stays open over the epoch's end and the next epoch goes on counting, although
        # Detector.optimizer_step has discarded the gradients that it had.
        must_step = trainer.is_last_batch and not pl_module.options.literal
        self._window_batches += 1
        # Lightning steps after each accumulate_grad_batches batches of an epoch, and divides the
        # loss by that number; Detector.training_step undoes the division.
        if must_step or self._window_batches >= rates.accumulate:
            trainer.accumulate_grad_batches = 1  # the batch ends in an optimizer step
            self._window_batches = 0
        else:
            trainer.accumulate_grad_batches = NO_STEP  # more batches than any epoch has

    def state_dict(self) -> dict[str, Any]:
        return {"window_batches": self._window_batches}  # RunState saves the window's gradients

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._window_batches = state_dict["window_batches"]
