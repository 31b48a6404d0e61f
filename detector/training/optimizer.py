"""The optimizer: its options, and its groups of parameters."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from boltbox.detector.model.parts import build_part, find_part, part_config
from boltbox.detector.model.timm_backbone import body_of
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import (
    CheckedOptions,
    NonNegativeFloat,
    OpenUnitInterval,
    PositiveInt,
)
from boltbox.detector.training.muon import Muon
from boltbox.detector.training.schedule import (
    LrSchedule,
    effective_weight_decay,
    fitting_batch_size,
)

OptimizerName = Literal["SGD", "Adam", "AdamW", "Muon"]


class StartingPoint(Enum):
    """What a training starts from. It decides the options of OptimOptions that are left open."""

    SCRATCH = "random weights"
    BACKBONE = "a trained backbone"
    PRETRAINED = "the weights of a detector"
    FINETUNE = "the weights of a detector of these classes"

    @classmethod
    def of(cls, weights: str | Path | None, backbone_weights: str | Path | None) -> StartingPoint:
        """By the files that StartOptions names."""
        if weights:
            return cls.PRETRAINED
        return cls.BACKBONE if backbone_weights else cls.SCRATCH


class Defaults(NamedTuple):
    """Options of an optimizer where the user gives none.

    Attributes:
        lr0: Initial learning rate.
        momentum: Momentum of SGD and Muon, beta1 of Adam; None: the class's own.
        weight_decay: See OptimOptions.
        warmup_bias_lr: Learning rate of the biases at the start of the warm-up.
        warmup_min_batches: Minimum length of the warm-up.
    """

    lr0: float
    momentum: float | None
    weight_decay: float
    warmup_bias_lr: float
    warmup_min_batches: int


DEFAULTS = {  # SGD: YOLOv5's; AdamW and Muon: measured (docs/recipe.md)
    "SGD": Defaults(0.01, 0.937, 0.0005, 0.1, 100),
    "Adam": Defaults(0.001, 0.9, 0.0005, 0.0, 100),
    "AdamW": Defaults(0.001, 0.9, 0.05, 0.0, 100),
    "Muon": Defaults(0.008, 0.95, 0.05, 0.0, 0),
}
FINETUNE_LR = 0.0003  # of AdamW on weights that detect the classes (benchmarks/optimizers.md)
OPTION = "model.optim.optimizer"
NORMS = tuple(kind for name, kind in vars(nn).items() if isinstance(kind, type) and "Norm" in name)
AUTO: dict[str, Any] = {  # options that may be left open, and their values then
    "optimizer": "auto",
    "lr0": None,
    "momentum": None,
    "weight_decay": None,
    "backbone_lr": None,
}
OF_A_GROUP = ("betas", "weight_decay", "lr_share")  # of a parameter group, beside lr and momentum


@dataclass(frozen=True)
class OptimOptions(CheckedOptions):
    """How it is trained.

    Args:
        optimizer: Optimizer, or another one by class_path, like torch.optim.Adagrad. Its arguments
            are init_args. SGD is Nesterov's. auto: AdamW where model.start.weights are given that
            detect objects in the images, else Muon.
        lr0: Initial learning rate; default: by optimizer. SGD 0.01, Adam and AdamW 0.001, or 0.0003
            if they detect the classes, Muon 0.008, with backbone_weights 0.016, a class its
            own.
        lrf: The learning rate falls towards lr0 * lrf.
        momentum: SGD and Muon momentum, Adam beta1; default: SGD 0.937, Adam and AdamW 0.9, Muon
            0.95.
        weight_decay: For nominal_batch_size images per step, on weights that are neither biases nor
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
        """The options by name, in plain types that a checkpoint holds."""
        optimizer: Any = self.optimizer
        if not isinstance(optimizer, str):
            optimizer = part_config(optimizer, Optimizer, OPTION)
        return vars(self) | {"optimizer": optimizer}

    def auto_names(self) -> list[str]:
        """The options that are left open, for `resolve` to choose."""
        return [name for name, left_open in AUTO.items() if getattr(self, name) == left_open]

    def resolve(
        self, start: StartingPoint, continued: Mapping[str, Any] | None = None
    ) -> OptimOptions:
        """Choose the options that are left open: the only place that decides `lr0`. A class is
        named by class_path and init_args from here on.

        AdamW trains the weights of a detector, Muon random ones. Where Muon trains fresh layers on
        a trained backbone, they learn twice as fast, and AdamW trains the backbone
        (benchmarks/backbones.md).

        Args:
            start: What the training starts from.
            continued: Options of the run that is continued, by name: they go before the defaults.

        Raises:
            InputError: There is no such optimizer.
        """
        is_auto = self.optimizer == "auto"
        optimizer: Any = self.to_dict()["optimizer"]
        if is_auto:
            from_detector = start in (StartingPoint.PRETRAINED, StartingPoint.FINETUNE)
            optimizer = "AdamW" if from_detector else "Muon"
        options = replace(self, optimizer=optimizer)
        chosen = options.defaults._asdict()
        if optimizer == "Muon" and start is StartingPoint.BACKBONE:
            chosen["lr0"] = 2 * DEFAULTS["Muon"].lr0
            chosen["backbone_lr"] = DEFAULTS["AdamW"].lr0
        if is_auto and start is StartingPoint.FINETUNE:
            chosen["lr0"] = FINETUNE_LR
        if isinstance(continued, Mapping):  # else these options, given to load_from_checkpoint
            chosen |= continued
        resolved = {name: chosen[name] for name in self.auto_names() if name in chosen}
        return replace(options, **resolved)

    @property
    def optimizer_name(self) -> str:
        """Its name in messages: SGD, or Adagrad for torch.optim.Adagrad."""
        optimizer: Any = self.optimizer
        return optimizer if isinstance(optimizer, str) else optimizer["class_path"].split(".")[-1]

    def _arguments(self) -> dict[str, Any]:
        """The arguments of an optimizer's class, given or default."""
        optimizer: Any = self.optimizer
        parameters = inspect.signature(find_part(optimizer, Optimizer, OPTION)).parameters
        return {name: p.default for name, p in parameters.items()} | optimizer["init_args"]

    def optimizer_in_full(self) -> Any:
        """Its name, or its class and arguments, as JSON has them: the same whether defaults are
        given or left out, as the command line and a script do."""
        optimizer: Any = self.optimizer
        if isinstance(optimizer, str):
            return optimizer
        return json.loads(json.dumps(optimizer | {"init_args": self._arguments()}, default=str))

    @property
    def defaults(self) -> Defaults:
        """The defaults of this optimizer; those of a class are the defaults of its arguments.

        Raises:
            InputError: A class has no default learning rate.
        """
        optimizer: Any = self.optimizer
        if isinstance(optimizer, str):
            return DEFAULTS[optimizer]
        arguments = self._arguments()
        lr = arguments.get("lr")
        if not isinstance(lr, int | float):
            lr = self.lr0
        if lr is None:
            raise InputError(f"{OPTION} {optimizer['class_path']}: give its rate, model.optim.lr0")
        return Defaults(lr, None, arguments.get("weight_decay", 0.0), 0.0, 100)

    def effective_batch_size(self, batch_size: int, batches: int) -> int:
        """Images per optimizer step after the warm-up.

        Args:
            batch_size: Images per batch, over all devices.
            batches: Batches of the whole run.
        """
        if self.nominal_batch_size == "auto":
            return fitting_batch_size(batch_size, batches)
        return self.nominal_batch_size

    def build(self, network: nn.Module, batch_size: int) -> Optimizer:
        """The optimizer of a network.

        Its groups are those of `parameter_groups`. In each, `lr_share` is the factor by which its
        learning rate differs from the others', and `orthogonal` says whether Muon trains it.

        Args:
            network: What is trained.
            batch_size: Images per batch, over all devices.
        """
        optimizer: Any = self.optimizer
        assert self.lr0 is not None
        assert self.weight_decay is not None
        lr = self.lr0
        decay = self.weight_decay
        if self.nominal_batch_size != "auto":  # else a step uses just as many images
            decay = effective_weight_decay(decay, self.nominal_batch_size, batch_size)
        backbone = None
        backbone_share = 1.0
        if self.backbone_lr is not None:
            backbone = body_of(network.get_submodule("backbone"))
            backbone_share = self.backbone_lr / (lr or 1)
        groups = []
        for name, parameters in parameter_groups(network, backbone, optimizer == "Muon").items():
            share = backbone_share if name.startswith("backbone_") else 1.0
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
            arguments = optimizer["init_args"] | {"lr": lr}
            return build_part(optimizer | {"init_args": arguments}, Optimizer, OPTION, groups)
        assert self.momentum is not None
        if optimizer == "SGD":
            return torch.optim.SGD(groups, lr=lr, momentum=self.momentum, nesterov=True)
        kind = Muon if optimizer == "Muon" else getattr(torch.optim, optimizer)
        return kind(groups, lr=lr, betas=(self.momentum, 0.999))

    def apply_to(self, optimizer: Optimizer, network: nn.Module, batch_size: int) -> None:
        """Give these options to an optimizer whose state, options included, Lightning has restored
        from a checkpoint.

        Raises:
            InputError: Its groups are not those of `build`.
        """
        if any("lr_share" not in group for group in optimizer.param_groups):
            raise InputError(
                "configure_optimizers of a Detector: warm-up and schedule set the rates by groups"
                " of parameters; give the class instead, OptimOptions(optimizer=MyOptimizer)"
            )
        fresh_groups = self.build(network, batch_size).param_groups
        for group, fresh in zip(optimizer.param_groups, fresh_groups, strict=True):
            for name in OF_A_GROUP:
                if name in fresh:
                    group[name] = fresh[name]


def parameter_groups(
    network: nn.Module, backbone: nn.Module | None = None, separate_filters: bool = False
) -> dict[str, list[nn.Parameter]]:
    """The parameters of a network by group.

    Args:
        network: What is trained.
        backbone: A part of the network whose groups have the prefix `backbone_`. Of a timm backbone
            this is the body, not the fresh layers that fit it to the neck.
        separate_filters: Outside of that part, depthwise weights, which filter one channel each,
            are the group `filter`.

    Returns:
        `bias`: parameters of that name; `norm`: weights of normalisation layers and other vectors;
        `weight`: all others; `filter`. Only `weight` and `filter` decay. No group is empty.
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for prefix in ("", "backbone_"):
        for kind in ("bias", "weight", "filter", "norm"):
            groups[prefix + kind] = []
    backbone_modules = set(backbone.modules()) if backbone else set()
    for path, parameter in network.named_parameters():  # each once, also where layers share it
        module_path, _, name = path.rpartition(".")
        module = network.get_submodule(module_path)
        prefix = "backbone_" if module in backbone_modules else ""
        kind = "weight"
        if name == "bias" or name.endswith("_bias"):
            kind = "bias"
        elif parameter.ndim < 2 or (name == "weight" and isinstance(module, NORMS)):
            kind = "norm"
        elif separate_filters and not prefix and min(parameter.shape[:2]) == 1:
            kind = "filter"
        groups[prefix + kind].append(parameter)
    return {name: parameters for name, parameters in groups.items() if parameters}
