"""Learning rates, momentum and accumulation of every batch."""

import math
from typing import Any

import lightning as L

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import BelowOne, NonNegativeFloat
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.gradient_window import GradientWindow
from boltbox.detector.training.module import Detector
from boltbox.detector.training.optimizer import OptimOptions
from boltbox.detector.training.schedule import Schedule, accumulation, warmup_iterations

REASONS = {"AdamW": " (auto: for pretrained weights)", "Muon": " (auto: from scratch)"}
FEW_STEPS = 200  # below this, smaller batches train better (docs/recipe.md)


class Warmup(L.Callback):
    """Sets learning rates, momentum and accumulation before every batch: those of the warm-up, then
    those of the schedule. No one else sets them.

    The warm-up takes at least 100 iterations (none with Muon), or a third of a shorter run;
    warmup_epochs 0 turns it off. With model.literal it takes 100 iterations even then, and the
    gradients of a window that is open at the end of an epoch are discarded.

    It is a callback and no scheduler, because momentum and accumulation change with the rates, and
    per batch, not per step.

    Put it before a LearningRateMonitor, which then logs the rates that are used.

    Args:
        warmup_epochs: Length in epochs; 0 is off.
        warmup_momentum: SGD's momentum at the start; Adam's beta1 stays.
        warmup_bias_lr: Learning rate of the biases at the start; the others start from 0. Default:
            SGD 0.1, else 0.

    Attributes:
        accumulate: Batches per optimizer step at the moment.
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
        self.accumulate = 1
        self._window = GradientWindow()
        self._schedule: Schedule | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        optim = pl_module.options.optim
        batch_size = pl_module.batch_size
        batches = int(trainer.num_training_batches)
        epochs = trainer.max_epochs
        if not epochs or epochs < 1:
            raise InputError(
                "trainer.max_epochs must be a positive number: the learning rate falls over the"
                " whole run"
            )
        step_images = optim.effective_batch_size(batch_size, batches * epochs)
        self._schedule = self._make_schedule(pl_module, epochs, batches, step_images)
        window = accumulation(step_images, batch_size)  # after the warm-up
        steps = math.ceil(batches / window) * epochs
        print_optimizer(optim, pl_module.is_auto("optimizer"), steps, batch_size * window)

    def _make_schedule(
        self, detector: Detector, epochs: int, batches: int, step_images: int
    ) -> Schedule:
        optim = detector.options.optim
        literal = detector.options.literal
        bias_lr = self.warmup_bias_lr
        if bias_lr is None:
            bias_lr = optim.defaults.warmup_bias_lr
        minimum = optim.defaults.warmup_min_iterations
        return Schedule(
            epochs=epochs,
            batches=batches,
            lr0=detector.lr,
            lrf=optim.lrf,
            lr_schedule=optim.lr_schedule,
            momentum=optim.momentum,
            step_batches=step_images / detector.batch_size,
            warmup=warmup_iterations(self.warmup_epochs, batches, epochs, minimum, literal),
            warmup_momentum=self.warmup_momentum,
            warmup_bias_lr=bias_lr,
            literal=literal,
        )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Detector, batch: Any, batch_idx: int
    ) -> None:
        assert self._schedule is not None
        # in batches, while trainer.global_step counts optimizer steps
        iteration = trainer.current_epoch * self._schedule.batches + batch_idx
        rates = self._schedule.rates_at(iteration)
        pl_module.set_rates(rates)
        is_last = trainer.is_last_batch
        if pl_module.options.literal:  # YOLOv5 makes no step there: an open window is dropped
            is_last = False
        self._window.start_batch(trainer, rates.accumulate, is_last)
        self.accumulate = rates.accumulate

    def state_dict(self) -> dict[str, Any]:
        return {"window_batches": self._window.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._window.batches = state_dict["window_batches"]


def print_optimizer(optim: OptimOptions, is_auto: bool, steps: int, images: int) -> None:
    """Print what a run trains with, why, and what may be wrong with it.

    Args:
        optim: The options, none of them left open.
        is_auto: The optimizer was left open.
        steps: Optimizer steps of the whole run.
        images: Images per step.
    """
    name = optim.optimizer_name
    assert optim.lr0 is not None
    reason = REASONS.get(name, "") if is_auto else ""
    text = f"{name}{reason}, lr0 {optim.lr0:g} ({optim.lr_schedule})"
    if optim.backbone_lr is not None:
        text += f", backbone {optim.backbone_lr:g}"
    text += f", {steps} steps of {images} images"
    if optim.nominal_batch_size == "auto" and images < 64:
        text += " (auto: 64 in a longer run)"
    print_fact("optimizer", text)
    usual = optim.defaults.lr0
    if optim.lr0 >= 10 * usual and name != "SGD":
        print_fact("hint", f"lr0 {optim.lr0:g} suits SGD; the default of {name} is {usual:g}")
    if steps < FEW_STEPS and images > 8:
        print_fact(
            "hint",
            f"{steps} optimizer steps are few; for more, lower data.batch_size and"
            " model.optim.nominal_batch_size, or train longer",
        )
