"""Batch norm whose statistics are exact in channels-last memory on a CPU.

There torch adds up all N * H * W values of a channel one after the other in float32 (its contiguous
kernel adds in float64). At 16 images of 160 x 160 pixels the variance is then wrong in the fourth
digit. Here each channel is added up in many short sums, by the same kernel in the same time, and
these are put together in float64 (Chan, Golub and LeVeque 1983, doi
10.1080/00031305.1983.10483115). `benchmarks/batch_norm.py` measures both.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

# at most this many running sums at once, over all channels: few enough for the processor's first
# cache
SUMS = 8192


class BatchNorm2d(nn.BatchNorm2d):
    """torch's, but for training on float32 maps in channels-last memory on a CPU. (N, C, H, W) ->
    the same."""

    momentum: float | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Tensor) -> Tensor:
        # a compiler's sums are exact (Welford's)
        if torch.compiler.is_compiling() or not (self.training and _adds_in_a_row(x)):
            return super().forward(x)
        mean, variance = statistics(x)
        with torch.no_grad():
            count = x.numel() // x.shape[1]
            self.num_batches_tracked += 1
            share = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean), share)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), share)
        return _Normalise.apply(x, self.weight, self.bias, mean, variance, self.eps)


def _adds_in_a_row(x: Tensor) -> bool:
    """Whether torch would add up this batch in one float32 sum a channel."""
    in_channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return (
        in_channels_last
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.numel() > x.shape[1]
    )


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel, float64 (C,), of a float32 (N, C, H, W) in
    channels-last memory."""
    n, channels, height, width = x.shape
    rows = n * height * width
    parts = next(p for p in range(max(SUMS // channels, 1), 0, -1) if rows % p == 0)
    # In memory a row holds all channels of a pixel. `parts` successive rows are read as one row of
    # this many times the channels.
    x = (
        x.detach()
        .permute(0, 2, 3, 1)
        .reshape(1, rows // parts, 1, parts * channels)
        .permute(0, 3, 1, 2)
    )
    means, variances = (
        s.double().view(parts, channels) for s in torch.batch_norm_update_stats(x, None, None, 0.0)
    )
    mean = means.mean(0)
    return mean, variances.mean(0) + (means - mean).square().mean(0)


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, where mean and variance are those of x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean.float(), (variance + eps).rsqrt().float())
        ctx.eps = eps
        return batch_norm(x, mean.float(), variance.float(), weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        wanted = ctx.needs_input_grad[:3]
        gradients = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mean, inverse, True, ctx.eps, wanted
        )
        return *gradients, None, None, None


def set_momentum(network: nn.Module, momentum: float) -> None:
    """Share of a training batch's statistics in the running ones, of every batch norm."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum
