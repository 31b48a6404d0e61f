"""The optimizer and its three groups of parameters."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

OptimizerName = Literal["SGD", "Adam", "AdamW"]
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
