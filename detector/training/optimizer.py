"""The optimizer: its options, and its groups of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from boltbox.detector.model.parts import build_part, find_part, part_config
from boltbox.detector.model.timm_backbone import body_of
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import NonNegativeFloat, OpenUnitInterval, PositiveInt
from boltbox.detector.training.muon import Muon
from boltbox.detector.training.schedule import (
    LrSchedule,
    effective_weight_decay,
    fitting_batch_size,
    lr_factor,
)

OptimizerName = Literal["SGD", "Adam", "AdamW", "Muon"]


class Rates(NamedTuple):
    """What an optimizer is given where the user says nothing else. momentum: of SGD and Muon, or
    Adam's beta1; None: the class's own. warmup_bias_lr: learning rate of the biases at the start of
    the warm-up. warmup_min_iterations: of the warm-up."""

    lr0: float
    momentum: float | None
    weight_decay: float
    warmup_bias_lr: float
    warmup_min_iterations: int


RATES: dict[str, Rates] = {  # SGD's are YOLOv5's, those of AdamW and Muon measured (docs/recipe.md)
    "SGD": Rates(0.01, 0.937, 0.0005, 0.1, 100),
    "Adam": Rates(0.001, 0.9, 0.0005, 0.0, 100),
    "AdamW": Rates(0.001, 0.9, 0.05, 0.0, 100),
    "Muon": Rates(0.008, 0.95, 0.05, 0.0, 0),
}
OPTION = "model.optim.optimizer"
NORMS = tuple(kind for name, kind in vars(nn).items() if isinstance(kind, type) and "Norm" in name)
# options that what a training starts from may choose
AUTO = "optimizer", "lr0", "momentum", "weight_decay", "backbone_lr"
OF_A_GROUP = "betas", "weight_decay", "lr_share"  # beside rate and momentum: see set_rates


@dataclass
class OptimOptions:
    """How it is trained.

    Args:
        optimizer: Optimizer, or another one by class_path, like torch.optim.Adagrad. Its arguments
            are init_args. SGD is Nesterov's. auto: AdamW where model.start.weights are given that
            see objects in the images, else Muon.
        lr0: Initial learning rate; default: by optimizer. SGD 0.01, Adam and AdamW 0.001, or 0.0003
            if the weights know the classes, Muon 0.008, with backbone_weights 0.016, a class its
            own.
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

    def to_dict(self) -> dict[str, Any]:
        """By name, in plain types that a checkpoint holds."""
        given = self.optimizer
        plain = given if isinstance(given, str) else part_config(given, Optimizer, OPTION)
        return vars(self) | {"optimizer": plain}

    def auto_names(self) -> list[str]:
        """The options that are left to be chosen."""
        return [name for name in AUTO if getattr(self, name) in (None, "auto")]

    def resolve(self, weights: str | None, backbone_weights: str | None) -> OptimOptions:
        """With the options of `auto_names` chosen by what the network starts from: AdamW for one
        that starts from the weights of a detector, Muon for random numbers. Where Muon trains fresh
        layers on a backbone that was trained before, these learn twice as fast, and the backbone by
        AdamW (benchmarks/backbones.md).

        Raises:
            InputError: no such optimizer.
        """
        optimizer: Any = self.to_dict()["optimizer"]
        if optimizer == "auto":
            optimizer = "AdamW" if weights else "Muon"
        options = replace(self, optimizer=optimizer)
        rates = options.rates._asdict()
        if optimizer == "Muon" and backbone_weights:
            rates |= {"lr0": 2 * RATES["Muon"].lr0, "backbone_lr": RATES["AdamW"].lr0}
        auto = {name: rates[name] for name in self.auto_names() if name in rates}
        return replace(options, **auto)

    @property
    def optimizer_name(self) -> str:
        """For people: SGD, or Adagrad of torch.optim.Adagrad."""
        optimizer: Any = self.to_dict()["optimizer"]
        return optimizer if isinstance(optimizer, str) else optimizer["class_path"].split(".")[-1]

    @property
    def rates(self) -> Rates:
        """What this optimizer is given where the user says nothing else: of a class, its own
        defaults.

        Raises:
            InputError: no such optimizer, or a class without a default learning rate.
        """
        optimizer: Any = self.to_dict()["optimizer"]
        if isinstance(optimizer, str):
            if optimizer not in RATES:
                raise InputError(
                    f"{OPTION} {optimizer}: it is auto, {', '.join(RATES)} or a class like"
                    " torch.optim.Adagrad"
                )
            return RATES[optimizer]
        arguments = inspect.signature(find_part(optimizer, Optimizer, OPTION)).parameters
        defaults = {name: a.default for name, a in arguments.items()} | optimizer["init_args"]
        lr = defaults.get("lr")
        lr = lr if isinstance(lr, int | float) else self.lr0
        if lr is None:
            raise InputError(f"{OPTION} {optimizer['class_path']}: give its rate, model.optim.lr0")
        return Rates(lr, None, defaults.get("weight_decay", 0.0), 0.0, 100)

    def lr(self, epoch: int, epochs: int | None) -> float:
        """The learning rate of an epoch outside of the warm-up.

        Args:
            epochs: of the whole run.

        Raises:
            InputError: the run has no end.
        """
        if not epochs or epochs < 1:
            raise InputError(
                "trainer.max_epochs must be a positive number: the learning rate falls over the"
                " whole run"
            )
        assert self.lr0 is not None
        return self.lr0 * lr_factor(epoch, epochs, self.lrf, self.lr_schedule)

    def effective_batch_size(self, batch_size: int, batches: int) -> int:
        """Images that gradients are accumulated to after warm-up, in a run of this many batches."""
        if self.nominal_batch_size == "auto":
            return fitting_batch_size(batch_size, batches)
        return self.nominal_batch_size

    def build(self, network: nn.Module, batch_size: int) -> Optimizer:
        """The optimizer of a network that is trained on batches of this size, over all devices.

        Of a class it takes the class's own momentum. Groups: see `parameter_groups`; in each
        `lr_share`, what the rates of warm-up and schedule are multiplied by for it, and
        `orthogonal`, whether Muon is for it.

        Raises:
            InputError: a rate for the backbone, and none to compare it with.
        """
        lr, decay, optimizer = self.lr0, self.weight_decay, self.to_dict()["optimizer"]
        assert lr is not None
        assert decay is not None
        if self.nominal_batch_size != "auto":  # with it, a step sees just as many images
            decay = effective_weight_decay(decay, self.nominal_batch_size, batch_size)
        if self.backbone_lr and not lr:
            raise InputError(
                "model.optim.backbone_lr: the backbone's rate follows that of the rest, but"
                " model.optim.lr0 is 0"
            )
        backbone = None
        if self.backbone_lr is not None:
            backbone = body_of(network.get_submodule("backbone"))
        groups = []
        for name, parameters in parameter_groups(network, backbone, optimizer == "Muon").items():
            share = (self.backbone_lr or 0.0) / (lr or 1) if name.startswith("backbone_") else 1.0
            groups.append(
                {
                    "params": parameters,
                    "name": name,
                    "lr": lr * share,
                    "lr_share": share,
                    "weight_decay": decay if name.endswith(("weight", "filter")) else 0.0,
                    "orthogonal": name == "weight",
                }
            )
        if not isinstance(optimizer, str):
            own = {**optimizer["init_args"], "lr": lr}
            return build_part({**optimizer, "init_args": own}, Optimizer, OPTION, groups)
        assert self.momentum is not None
        if optimizer == "SGD":
            return torch.optim.SGD(groups, lr=lr, momentum=self.momentum, nesterov=True)
        kind = Muon if optimizer == "Muon" else getattr(torch.optim, optimizer)
        return kind(groups, lr=lr, betas=(self.momentum, 0.999))

    def take_over(self, optimizer: Optimizer, network: nn.Module, batch_size: int) -> None:
        """Give an optimizer that a checkpoint has restored these options: Lightning restores the
        checkpoint's with its state.

        Raises:
            InputError: its groups are not those of `build`.
        """
        if any("lr_share" not in group for group in optimizer.param_groups):
            raise InputError(
                "configure_optimizers of a Detector: warm-up and schedule set the rates by groups"
                " of parameters; give the class instead, OptimOptions(optimizer=MyOptimizer)"
            )
        fresh = self.build(network, batch_size).param_groups
        for group, own in zip(optimizer.param_groups, fresh, strict=True):
            group |= {name: own[name] for name in OF_A_GROUP if name in own}


def parameter_groups(
    network: nn.Module, backbone: nn.Module | None = None, filters_apart: bool = False
) -> dict[str, list[nn.Parameter]]:
    """`bias`: parameters of that name; `norm`: weights of normalisation layers, and whatever else
    is a number a channel; `weight`: all others, which alone decay. None is empty.

    Args:
        backbone: Part of the network whose groups are backbone_bias and so on. Of a timm backbone
            this is the body, not the fresh layers that fit it to the neck.
        filters_apart: Weights outside of it that do not map several channels to several, but are
            filters over one channel each, are the group `filter`, and decay too.
    """
    kinds = "bias", "weight", "filter", "norm"
    groups: dict[str, list[nn.Parameter]] = {
        prefix + kind: [] for prefix in ("", "backbone_") for kind in kinds
    }
    within = set(backbone.modules()) if backbone else set()
    for module in network.modules():
        prefix = "backbone_" if module in within else ""
        for name, parameter in module.named_parameters(recurse=False):
            kind = "weight"
            if name == "bias" or name.endswith("_bias"):
                kind = "bias"
            elif parameter.ndim < 2 or (name == "weight" and isinstance(module, NORMS)):
                kind = "norm"
            elif filters_apart and not prefix and min(parameter.shape[:2]) == 1:
                kind = "filter"
            groups[prefix + kind].append(parameter)
    return {name: parameters for name, parameters in groups.items() if parameters}


def set_rates(
    optimizer: Optimizer, lr: float | None, momentum: float | None, bias_lr: float | None = None
) -> None:
    """Give all groups this learning rate, times their share, and momentum; None: leave theirs.

    Args:
        bias_lr: Learning rate of the biases; default: the others'.
    """
    for group in optimizer.param_groups:
        is_bias = bias_lr is not None and group["name"].endswith("bias")
        rate = bias_lr if is_bias else lr
        if rate is not None:
            group["lr"] = rate * group["lr_share"]
        if "momentum" in group and momentum is not None:
            group["momentum"] = momentum
