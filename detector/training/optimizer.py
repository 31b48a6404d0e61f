"""The optimizer and its three groups of parameters."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

OptimizerName = Literal["SGD", "Adam", "AdamW"]


class Rates(NamedTuple):
    """What an optimizer is given where the user says nothing else. momentum: of SGD, or Adam's beta1. warmup_bias_lr: learning
    rate of the biases at the start of the warm-up."""

    lr0: float
    momentum: float
    weight_decay: float
    warmup_bias_lr: float


RATES: dict[str, Rates] = {  # SGD's are YOLOv5's, AdamW's measured (docs/recipe.md)
    "SGD": Rates(0.01, 0.937, 0.0005, 0.1),
    "Adam": Rates(0.001, 0.9, 0.0005, 0.0),
    "AdamW": Rates(0.001, 0.9, 0.05, 0.0),
}
NORMS = tuple(kind for name, kind in vars(nn).items() if isinstance(kind, type) and "Norm" in name)


def parameter_groups(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """`bias`: parameters of that name; `norm`: weights of normalisation layers; `weight`: all others, which alone decay."""
    groups: dict[str, list[nn.Parameter]] = {"bias": [], "weight": [], "norm": []}
    for group, parameter in _grouped(module):
        groups[group].append(parameter)
    return groups


def _grouped(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            if name == "bias" or name.endswith("_bias"):
                yield "bias", parameter
            elif name == "weight" and isinstance(child, NORMS):
                yield "norm", parameter
            else:
                yield "weight", parameter


def build_optimizer(module: nn.Module, name: OptimizerName, lr: float, momentum: float, weight_decay: float) -> Optimizer:
    """SGD with Nesterov momentum, or Adam or AdamW with beta1 = momentum; only the group `weight` decays."""
    groups: list[dict[str, Any]] = [
        {"params": parameters, "name": group, "weight_decay": weight_decay if group == "weight" else 0.0}
        for group, parameters in parameter_groups(module).items()
        if parameters
    ]
    if name == "SGD":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=True)
    return getattr(torch.optim, name)(groups, lr=lr, betas=(momentum, 0.999))
