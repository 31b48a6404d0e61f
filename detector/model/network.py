"""The YOLOv5 network: backbone, path-aggregation neck, anchor-based head.

A level k works at stride 2**k. The neck (Liu et al. 2018, arXiv 1803.01534) walks from the top level of the backbone down to
the finest detection level and up again; everything else follows from the two multiples and the list of levels.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from detector.model.anchors import default_anchors, in_level_order
from detector.model.layers import C3, SPPF, Conv
from detector.system.errors import InputError, nearest


class Size(NamedTuple):
    depth: float
    width: float
    levels: tuple[int, ...] = (3, 4, 5)


P6, P7 = (3, 4, 5, 6), (3, 4, 5, 6, 7)
SIZES = {
    "n": Size(0.33, 0.25),
    "s": Size(0.33, 0.50),
    "m": Size(0.67, 0.75),
    "l": Size(1.00, 1.00),
    "x": Size(1.33, 1.25),
    "n6": Size(0.33, 0.25, P6),
    "s6": Size(0.33, 0.50, P6),
    "m6": Size(0.67, 0.75, P6),
    "l6": Size(1.00, 1.00, P6),
    "x6": Size(1.33, 1.25, P6),
    "p2": Size(1.00, 1.00, (2, 3, 4, 5)),
    "p34": Size(0.33, 0.50, (3, 4)),
    "p6": Size(1.00, 1.00, P6),
    "p7": Size(1.00, 1.00, P7),
}
CHANNELS = {5: (64, 128, 256, 512, 1024), 6: (64, 128, 256, 512, 768, 1024), 7: (64, 128, 256, 512, 768, 1024, 1280)}
STAGE_REPEATS = {2: 3, 3: 6, 4: 9, 5: 3, 6: 3, 7: 3}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "hardswish": nn.Hardswish,
}


def resolve_size(size: str) -> Size:
    """The row of SIZES; an unknown name is an InputError that gives the nearest."""
    if size not in SIZES:
        raise InputError(f"model.size '{size}' is not known; {nearest(size, SIZES)}")
    return SIZES[size]


class Backbone(nn.Module):
    """Image (B, 3, H, W) -> {level: (B, channels[level], H / 2**level, W / 2**level)} for levels 2 to `top`."""

    def __init__(self, channels: dict[int, int], repeats: dict[int, int]) -> None:
        super().__init__()
        top = max(channels)
        self.stem = Conv(3, channels[1], kernel=6, stride=2, padding=2)
        self.down = nn.ModuleDict({str(k): Conv(channels[k - 1], channels[k], kernel=3, stride=2) for k in range(2, top + 1)})
        self.c3 = nn.ModuleDict({str(k): C3(channels[k], channels[k], repeats[k]) for k in range(2, top + 1)})
        self.sppf = SPPF(channels[top], channels[top])

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        x, maps = self.stem(x), {}
        for k in self.down:
            x = self.c3[k](self.down[k](x))
            maps[int(k)] = x
        maps[int(k)] = self.sppf(x)
        return maps


class Neck(nn.Module):
    """{level: map} from the backbone -> one map a detection level, finest first, with the backbone's channels of that level."""

    def __init__(self, channels: dict[int, int], levels: Sequence[int], repeats: dict[int, int]) -> None:
        super().__init__()
        top, low, high = max(channels), min(levels), max(levels)
        down, up = range(top - 1, low - 1, -1), range(low + 1, high + 1)
        self.lateral = nn.ModuleDict({str(k): Conv(channels[k + 1], channels[k]) for k in down})
        self.top_down = nn.ModuleDict({str(k): C3(2 * channels[k], channels[k], repeats[k], shortcut=False) for k in down})
        self.down = nn.ModuleDict({str(k): Conv(channels[k - 1], channels[k - 1], kernel=3, stride=2) for k in up})
        self.bottom_up = nn.ModuleDict({str(k): C3(2 * channels[k - 1], channels[k], repeats[k], shortcut=False) for k in up})
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, maps: dict[int, Tensor]) -> list[Tensor]:
        x = maps[max(maps)]
        laterals = {}
        for k in self.lateral:  # coarse to fine
            laterals[int(k)] = self.lateral[k](x)
            x = self.top_down[k](torch.cat((self.upsample(laterals[int(k)]), maps[int(k)]), 1))
        outputs = [x]
        for k in self.bottom_up:  # fine to coarse
            x = self.bottom_up[k](torch.cat((self.down[k](x), laterals[int(k) - 1]), 1))
            outputs.append(x)
        return outputs


class Head(nn.Module):
    """A 1x1 convolution a level: (B, C, H, W) -> logits (B, A, H, W, 5 + num_classes) of x, y, w, h, objectness, classes."""

    def __init__(self, channels: Sequence[int], num_anchors: int, num_classes: int) -> None:
        super().__init__()
        self.num_anchors = num_anchors
        self.convs = nn.ModuleList(nn.Conv2d(c, num_anchors * (5 + num_classes), 1) for c in channels)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        outputs = []
        for conv, x in zip(self.convs, maps, strict=True):
            b, _, h, w = x.shape
            y = conv(x).view(b, self.num_anchors, -1, h, w)  # (B, A, 5 + C, H, W)
            outputs.append(y.permute(0, 1, 3, 4, 2).contiguous())  # (B, A, H, W, 5 + C)
        return outputs

    @torch.no_grad()
    def add_priors(self, strides: Sequence[int], class_counts: Tensor | None = None) -> None:
        """Start from what is likely before seeing the image (Lin et al. 2017, arXiv 1708.02002, section 3.3): 8 objects in a
        640 px image for objectness, 0.6 objects' worth over the classes, or the classes' shares in the labels if given.

        Args:
            strides: pixels per cell of each level.
            class_counts: (C,) labels of each class in the training set.
        """
        for conv, stride in zip(self.convs, strides, strict=True):
            bias = _bias(conv).view(self.num_anchors, -1)  # (A, 5 + C)
            num_classes = bias.shape[1] - 5
            bias[:, 4] += math.log(8 / (640 / stride) ** 2)
            bias[:, 5:] += _uniform_prior(num_classes) if class_counts is None else _frequency_prior(class_counts)

    @torch.no_grad()
    def set_class_prior(self, class_counts: Tensor) -> None:
        """Replace the uniform prior of a fresh head by the classes' shares; class_counts (C,) labels of each class."""
        for conv in self.convs:
            _bias(conv).view(self.num_anchors, -1)[:, 5:] += _frequency_prior(class_counts) - _uniform_prior(len(class_counts))


def _bias(conv: nn.Module) -> Tensor:
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    return conv.bias


def _uniform_prior(num_classes: int) -> float:
    return math.log(0.6 / (num_classes - 0.99999))


def _frequency_prior(counts: Tensor) -> Tensor:
    """(C,) log shares; a class without labels is taken to have one."""
    counts = torch.where(counts > 0, counts, 1).float()
    return torch.log(counts / counts.sum())


class YOLOv5(nn.Module):
    """Image (B, 3, H, W) in 0..1, sides multiples of `max_stride` -> per level raw (B, A, H / s, W / s, 5 + num_classes).

    Args:
        num_classes: number of classes C.
        size: a row of SIZES: n s m l x, n6 s6 m6 l6 x6, p2 p34 p6 p7.
        depth_multiple, width_multiple, levels: replace that row's values one by one.
        anchors: per level, pixels w, h, w, h, ... of the anchors (levels in the wrong order are reversed); a number: so many
            default anchors a level; None: the defaults of these levels.
        activation: silu, relu, leaky_relu (slope 0.1) or hardswish.
        class_counts: labels of each class, for the head's starting bias; None: all classes alike.

    Anchors live in the buffer `anchors` (levels, A, 2), in units of each level's stride; checkpoints and averages hold them.
    """

    anchors: Tensor

    def __init__(
        self,
        num_classes: int,
        size: str = "n",
        depth_multiple: float | None = None,
        width_multiple: float | None = None,
        levels: Sequence[int] | None = None,
        anchors: Sequence[Sequence[float]] | int | None = None,
        activation: str = "silu",
        class_counts: Tensor | None = None,
    ) -> None:
        super().__init__()
        row = resolve_size(size)
        depth = row.depth if depth_multiple is None else depth_multiple
        width = row.width if width_multiple is None else width_multiple
        self.levels = tuple(row.levels if levels is None else levels)
        if self.levels not in [tuple(range(low, high)) for low in range(2, 8) for high in range(low + 1, 9)]:
            raise InputError(f"model.levels {list(self.levels)}: give consecutive levels between 2 and 7, like [3, 4, 5]")
        if activation not in ACTIVATIONS:
            raise InputError(f"model.activation '{activation}' is not known; {nearest(activation, ACTIVATIONS)}")
        top = max(5, self.levels[-1])
        channels = {k: scaled_channels(c, width) for k, c in enumerate(CHANNELS[top], 1)}
        self.num_classes = num_classes
        self.strides = [2**k for k in self.levels]
        self.max_stride = 2**top

        self.backbone = Backbone(channels, {k: _scaled(STAGE_REPEATS[k], depth) for k in range(2, top + 1)})
        self.neck = Neck(
            channels, self.levels, {k: _scaled(3 if k > 2 else 1, depth) for k in range(min(self.levels), top + 1)}
        )
        if isinstance(anchors, int) and not 1 <= anchors <= 20:
            raise InputError(f"model.anchors {anchors}: give 1 to 20 anchors a level, or a list of them")
        if anchors is None or isinstance(anchors, int):
            anchors = default_anchors(self.levels, anchors or 3)
        rows = anchors
        lengths, flat = {len(r) for r in rows}, [v for r in rows for v in r]
        if (
            len(rows) != len(self.levels)
            or len(lengths) > 1
            or 0 in lengths
            or len(rows[0]) % 2
            or not all(0 < v < math.inf for v in flat)
        ):
            raise InputError(
                f"model.anchors: give one row of positive pixels w, h, w, h, ... for each of the {len(self.levels)} levels"
            )
        pixels = in_level_order(np.array(rows, np.float32).reshape(len(rows), -1, 2), self.strides)
        self.register_buffer("anchors", torch.zeros(pixels.shape))
        self.set_anchors(torch.from_numpy(pixels))
        self.head = Head([channels[k] for k in self.levels], pixels.shape[1], num_classes)
        self.head.add_priors(self.strides, class_counts)
        if activation != "silu":
            for module in self.modules():
                if isinstance(module, Conv):
                    module.act = ACTIVATIONS[activation]()

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.head(self.neck(self.backbone(images)))

    @property
    def anchors_px(self) -> Tensor:
        """(levels, A, 2) width and height in pixels of the network's input."""
        return self.anchors * torch.tensor(self.strides, device=self.anchors.device).view(-1, 1, 1)

    def set_anchors(self, pixels: Tensor) -> None:
        """Use these anchors: (levels, A, 2) width and height in pixels of the network's input."""
        self.anchors.copy_(pixels / torch.tensor(self.strides, device=pixels.device).view(-1, 1, 1))

    def fused(self) -> "YOLOv5":
        """A copy in evaluation mode with every batch norm folded into its convolution."""
        network = copy.deepcopy(self).eval()
        for module in network.modules():
            if isinstance(module, Conv):
                module.fuse()
        return network.requires_grad_(False)

    def layer_names(self) -> dict[int, str]:
        """YOLOv5's layer number -> the module here, in forward order: what `freeze: 10` and published weights refer to.

        >>> names = YOLOv5(1).layer_names()
        >>> [names[i] for i in (0, 1, 2, 9, 10, 13, 18, 20, 24)]
        ['backbone.stem', 'backbone.down.2', 'backbone.c3.2', 'backbone.sppf', 'neck.lateral.4', 'neck.top_down.4', \
'neck.down.4', 'neck.bottom_up.4', 'head']
        """
        order: list[str | None] = ["backbone.stem"]  # None stands for a layer without weights: upsample, concatenate
        for k in self.backbone.down:
            order += [f"backbone.down.{k}", f"backbone.c3.{k}"]
        order += ["backbone.sppf"]
        for k in self.neck.lateral:
            order += [f"neck.lateral.{k}", None, None, f"neck.top_down.{k}"]
        for k in self.neck.bottom_up:
            order += [f"neck.down.{k}", None, f"neck.bottom_up.{k}"]
        return {i: name for i, name in enumerate([*order, "head"]) if name}


def scaled_channels(channels: int, width: float) -> int:
    """A layer's channels at a width multiple: a multiple of 8.

    >>> scaled_channels(64, 0.33)
    24
    """
    return math.ceil(channels * width / 8) * 8


def _scaled(repeats: int, depth: float) -> int:
    return max(round(repeats * depth), 1) if repeats > 1 else repeats
