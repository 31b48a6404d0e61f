"""Depthwise convolutions in float32 where a CPU computes the others in bfloat16.

oneDNN's gradients of a depthwise convolution that strides, or whose kernel is larger than 3x3, take
3 to 15 times as long in bfloat16 as in float32: with them a step of an EfficientNet-Lite0 takes 1.6
times as long (benchmarks/depthwise.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only


def depthwise_in_float32(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """For the forward of a network on x in training; it does nothing but under a CPU's autocast."""
    low = x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    return _DepthwiseInFloat32() if low else contextlib.nullcontext()


class _DepthwiseInFloat32(TorchFunctionMode):
    """Computes the slow ones in float32. Their output has autocast's type, as without it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.conv2d or not is_slow(*args, **kwargs):
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, Tensor.float, (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return func(*args, **kwargs).to(torch.get_autocast_dtype("cpu"))


def is_slow(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    *others: Any,
    **options: Any,
) -> bool:
    """Whether oneDNN is slow at the gradients of this call of torch.conv2d in bfloat16."""
    depthwise = weight.shape[1] == 1 < weight.shape[0]
    return depthwise and (stride not in (1, (1, 1)) or max(weight.shape[2:]) > 3)
