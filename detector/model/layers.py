"""YOLOv5's four blocks, and YOLOX-Nano's depthwise convolution. Child names (conv, bn, cv1, m, ...,
dconv, pconv) are those of the published weights.

CSP blocks: Wang et al. 2019, arXiv 1911.11929. Spatial pyramid pooling: He et al. 2014, arXiv
1406.4729.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Conv(nn.Module):
    """Convolution without bias, batch norm, SiLU; output (B, c_out, ceil(H / stride), ceil(W /
    stride)) for odd kernels."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
    ) -> None:
        super().__init__()
        if padding is None:
            padding = kernel // 2
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, padding, groups=groups, bias=False)
        self.bn: nn.Module = nn.BatchNorm2d(c_out, eps=1e-3)
        self.act: nn.Module = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))

    def fuse(self) -> None:
        """Fold the batch norm's running statistics into the convolution: same output in evaluation
        mode, one pass less."""
        if isinstance(self.bn, nn.BatchNorm2d):
            self.conv = fuse_conv_bn_eval(self.conv.eval(), self.bn.eval())
            self.bn = nn.Identity()
            if isinstance(self.act, nn.SiLU):
                # in training a copy of its input would be made first
                self.act.inplace = True


class DepthwiseConv(nn.Module):
    """Replaces a 3x3 Conv: one on each channel separately, then a 1x1 on all (Howard et al. 2017,
    arXiv 1704.04861), each with batch norm and SiLU."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.dconv = Conv(c_in, c_in, kernel, stride, groups=c_in)
        self.pconv = Conv(c_in, c_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.pconv(self.dconv(x))


Convolution = type[Conv] | type[DepthwiseConv]  # of a network's 3x3 convolutions


class Bottleneck(nn.Module):
    """1x1 then 3x3, plus the input where shapes allow."""

    def __init__(self, c_in: int, c_out: int, shortcut: bool, conv: Convolution) -> None:
        super().__init__()
        self.cv1 = Conv(c_in, c_out, 1)
        self.cv2 = conv(c_out, c_out, 3)
        self.add = shortcut and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.add else y


class C3(nn.Module):
    """Cross-stage partial block: half of the channels pass n bottlenecks, half skip them."""

    def __init__(self, c_in: int, c_out: int, n: int, shortcut: bool, conv: Convolution) -> None:
        super().__init__()
        hidden = c_out // 2
        self.cv1 = Conv(c_in, hidden, 1)
        self.cv2 = Conv(c_in, hidden, 1)
        self.cv3 = Conv(2 * hidden, c_out, 1)
        self.m = nn.Sequential()
        for _ in range(n):
            self.m.append(Bottleneck(hidden, hidden, shortcut, conv))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(concatenate(self.m(self.cv1(x)), self.cv2(x)))


class SPPF(nn.Module):
    """Max-pools of 5, 9 and 13 pixels, as a chain of three 5-pixel pools."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        hidden = c_in // 2
        self.cv1 = Conv(c_in, hidden, 1)
        self.cv2 = Conv(4 * hidden, c_out, 1)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.cv1(x)]
        for _ in range(3):
            maps.append(self.pool(maps[-1]))
        return self.cv2(concatenate(*maps))


def concatenate(*maps: Tensor) -> Tensor:
    """Maps (B, C_i, H, W) -> (B, sum of C_i, H, W): torch.cat with gradients in dense memory.

    The gradients of torch.cat are views with gaps. In channels-last memory on a CPU, the backward
    pass of SiLU takes ten times as long on these.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not torch.is_grad_enabled():
        return torch.cat(maps, 1)
    return _Concatenate.apply(*maps)


class _Concatenate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:
        ctx.sizes = [m.shape[1] for m in maps]
        return torch.cat(maps, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.clone() for part in gradient.split(ctx.sizes, 1))


def set_momentum(network: nn.Module, momentum: float | None) -> None:
    """Set the share of a training batch's statistics in the running ones, in every batch norm;
    None: 0.1."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = 0.1 if momentum is None else momentum
