"""The options of the optimizer and its learning rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from boltbox.detector.model.parts import part_config
from boltbox.detector.system.ranges import NonNegativeFloat, OpenUnitInterval, PositiveInt
from boltbox.detector.training.optimizer import (
    OPTION,
    RATES,
    OptimizerName,
    Rates,
    build_optimizer,
    default_rates,
)
from boltbox.detector.training.schedule import LrSchedule, effective_weight_decay, lr_factor

# may be chosen by what a training starts from
AUTO = "optimizer", "lr0", "momentum", "weight_decay", "backbone_lr"


@dataclass
class OptimOptions:
    """How it is trained.

    Args:
        optimizer: SGD (Nesterov), Adam, AdamW or Muon; any other by class_path and init_args, like
            torch.optim.Adagrad. auto: AdamW where model.start.weights are given, else Muon.
        lr0: Learning rate of the first epoch; default: SGD 0.01, Adam and AdamW 0.001, Muon 0.008,
            with backbone_weights 0.016, a class its own.
        lrf: The learning rate falls towards lr0 * lrf.
        momentum: SGD and Muon momentum, Adam beta1; default: SGD 0.937, Adam and AdamW 0.9, Muon
            0.95.
        weight_decay: For nominal_batch_size images a step, on weights that are neither biases nor
            of norms; default: SGD and Adam 0.0005, AdamW and Muon 0.05.
        backbone_lr: As lr0, for the backbone, which Muon then leaves to AdamW; default: lr0, but
            with Muon and backbone_weights 0.001.
        nominal_batch_size: Gradients are accumulated to about this number of images. auto: to 64,
            or fewer in a run that would have few steps (docs/recipe.md).
        lr_schedule: linear or cosine.
    """

    optimizer: OptimizerName | Literal["auto"] | Callable[[Iterable[Any]], Optimizer] = "auto"
    lr0: NonNegativeFloat | None = None
    lrf: NonNegativeFloat = 0.01
    momentum: OpenUnitInterval | None = None
    weight_decay: NonNegativeFloat | None = None
    backbone_lr: NonNegativeFloat | None = None
    nominal_batch_size: PositiveInt | Literal["auto"] = "auto"
    lr_schedule: LrSchedule = "linear"

    def plain(self) -> dict[str, Any]:
        """By name, in plain types that a checkpoint holds."""
        given = self.optimizer
        plain = given if isinstance(given, str) else part_config(given, Optimizer, OPTION)
        return vars(self) | {"optimizer": plain}

    def auto_names(self) -> list[str]:
        """The options that are left to be chosen."""
        return [name for name in AUTO if getattr(self, name) in (None, "auto")]

    def chosen(self, weights: str | None, backbone_weights: str | None) -> OptimOptions:
        """With the options of `auto_names` chosen by what the network starts from: AdamW for one
        that starts from the weights of a detector, Muon for random numbers. Where Muon trains fresh
        layers on a backbone that was trained before, these learn twice as fast, and the backbone by
        AdamW (benchmarks/backbones.md).

        Raises:
            InputError: no such optimizer.
        """
        optimizer: Any = self.plain()["optimizer"]
        if optimizer == "auto":
            optimizer = "AdamW" if weights else "Muon"
        rates = default_rates(optimizer)._asdict()
        if optimizer == "Muon" and backbone_weights:
            rates |= {"lr0": 2 * RATES["Muon"].lr0, "backbone_lr": RATES["AdamW"].lr0}
        auto = {name: rates[name] for name in self.auto_names() if name in rates}
        return replace(self, optimizer=optimizer, **auto)

    @property
    def optimizer_name(self) -> str:
        """For people: SGD, or Adagrad of torch.optim.Adagrad."""
        optimizer: Any = self.plain()["optimizer"]
        return optimizer if isinstance(optimizer, str) else optimizer["class_path"].split(".")[-1]

    @property
    def rates(self) -> Rates:
        """Of this optimizer, where the user says nothing else."""
        return default_rates(self.plain()["optimizer"])

    def lr(self, epoch: int, epochs: int) -> float:
        """The learning rate of an epoch outside of the warm-up."""
        assert self.lr0 is not None
        return self.lr0 * lr_factor(epoch, epochs, self.lrf, self.lr_schedule)

    def build(self, network: nn.Module, batch_size: int) -> Optimizer:
        """The optimizer of a network that is trained on batches of this size, over all devices.

        Raises:
            InputError: a rate for the backbone, and none to compare it with.
        """
        assert self.lr0 is not None
        assert self.weight_decay is not None
        decay = self.weight_decay
        if self.nominal_batch_size != "auto":  # with it, a step sees just as many images
            decay = effective_weight_decay(decay, self.nominal_batch_size, batch_size)
        rates = self.lr0, self.momentum, decay, self.backbone_lr
        return build_optimizer(network, self.plain()["optimizer"], *rates)
