"""The network: backbone, neck and head; YOLOv5's sizes, and the options of a network.

A level k works at stride 2**k. Everything else follows from the two multiples, the list of levels
and the head.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from boltbox.detector.model.head import AnchorHead, Head
from boltbox.detector.model.layers import (
    C3,
    SPPF,
    Conv,
    Convolution,
    DepthwiseConv,
    concatenate,
    set_momentum,
)
from boltbox.detector.model.parts import build_part, part_config
from boltbox.detector.model.timm_backbone import PREFIX, TimmBackbone
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.ranges import (
    AboveZero,
    CheckedOptions,
    PositiveFloat,
    PositiveInt,
    check_arguments,
)

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "hardswish": nn.Hardswish,
}


class Size(NamedTuple):
    """Multiples of depth and width, and detection levels."""

    depth: float
    width: float
    levels: tuple[int, ...] = (3, 4, 5)


P6 = (3, 4, 5, 6)
P7 = (3, 4, 5, 6, 7)
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
MAX_MULTIPLE = 16  # of depth and width
LEVELS = (2, 3, 4, 5, 6, 7)  # that a detection level can be
CHANNELS = {  # by level from 1, by top level
    5: (64, 128, 256, 512, 1024),
    6: (64, 128, 256, 512, 768, 1024),
    7: (64, 128, 256, 512, 768, 1024, 1280),
}
REPEATS = {2: 3, 3: 6, 4: 9, 5: 3, 6: 3, 7: 3}
YOLOX_REPEATS = REPEATS | {3: 9}
BACKBONES = {  # bottlenecks by level
    "yolov5": REPEATS,
    "yolox": YOLOX_REPEATS,
    "yolox_depthwise": YOLOX_REPEATS,
}


UNKNOWN = "unknown"


class Origin(NamedTuple):
    """What weights started from.

    Attributes:
        source: A file's name, or that of published weights.
        licence: As their authors name it, or UNKNOWN.
    """

    source: str
    licence: str = UNKNOWN


@dataclass(frozen=True)
class NetworkOptions(CheckedOptions):
    """Which network it is.

    Args:
        size: n, s, m, l, x, n6, s6, m6, l6, x6, p2, p34, p6 or p7.
        backbone: yolov5, yolox, yolox_depthwise, or timm/NAME (docs/backbones.md). yolox is for
            weights of YOLOX, yolox_depthwise for those of YOLOX-Nano.
        depth_multiple: Instead of the size's.
        width_multiple: Instead of the size's.
        levels: Detection levels, level k has stride 2**k; instead of the size's.
        anchors: One row of pixels w, h, w, h, ... per level; or a number: AutoAnchor searches this
            many per level; default: the size's.
        activation: silu, relu, leaky_relu or hardswish.
        bn_momentum: Share of the newest batch in batch norm's running statistics. Default: 1 where
            boltbox.callbacks.EMA averages them as it averages the weights, else 0.1.
        head: Custom head by class_path and init_args (docs/parts.md).

    In Python head is a class, or functools.partial of a class and its arguments.
    """

    size: str = "n"
    backbone: str = "yolov5"
    depth_multiple: PositiveFloat | None = None
    width_multiple: PositiveFloat | None = None
    levels: list[int] | None = None
    anchors: list[list[float | list[float]]] | int | None = None
    activation: str = "silu"
    bn_momentum: AboveZero | None = None
    head: Callable[[Sequence[int], Sequence[int], int], Head] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The options by name, in plain types that a checkpoint holds."""
        return vars(self) | {"head": part_config(self.head, Head, "model.network.head")}

    def build(self, num_classes: int) -> YOLOv5:
        """The network, with fresh weights.

        Raises:
            InputError: the options make no network.
        """
        return YOLOv5(num_classes, **vars(self))


class Backbone(nn.Module):
    """From an image to one map per level: (B, 3, H, W) -> {level: (B, channels[level],
    H / 2**level, W / 2**level)} for levels 2 to the top.

    Args:
        channels: by level, from 1.
        repeats: bottlenecks of each level's stage, from 2.
        pool_first: YOLOX's order (Ge et al. 2021, arXiv 2107.08430): the pooling is before the last
            stage, not after it, and the bottlenecks of that stage have no shortcut.
        conv: of the 3x3 convolutions; YOLOX-Nano has DepthwiseConv.
    """

    def __init__(
        self,
        channels: dict[int, int],
        repeats: dict[int, int],
        pool_first: bool,
        conv: Convolution,
    ) -> None:
        super().__init__()
        top = max(channels)
        self.top = str(top)
        self.pool_first = pool_first
        self.stem = Conv(3, channels[1], kernel=6, stride=2, padding=2)
        self.down = nn.ModuleDict()
        self.c3 = nn.ModuleDict()
        for k in range(2, top + 1):
            self.down[str(k)] = conv(channels[k - 1], channels[k], kernel=3, stride=2)
        for k in range(2, top + 1):
            shortcut = k < top or not pool_first
            self.c3[str(k)] = C3(channels[k], channels[k], repeats[k], shortcut, conv)
        self.sppf = SPPF(channels[top], channels[top])

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        x = self.stem(x)
        maps = {}
        for k, down in self.down.items():
            x = down(x)
            if k == self.top and self.pool_first:
                x = self.sppf(x)
            x = self.c3[k](x)
            if k == self.top and not self.pool_first:
                x = self.sppf(x)
            maps[int(k)] = x
        return maps

    def layer_names(self) -> list[str | None]:
        """The modules in forward order."""
        names: list[str | None] = ["stem"]
        for k in self.down:
            names.append(f"down.{k}")
            names.append(f"c3.{k}")
        names.insert(-1 if self.pool_first else len(names), "sppf")
        return names


class Neck(nn.Module):
    """The path-aggregation neck (Liu et al. 2018, arXiv 1803.01534): from the top level of the
    backbone down to the finest detection level and up again. {level: map} of the backbone -> one
    map per detection level, finest first, with the same channels.

    Args:
        channels: of the backbone, by level.
        levels: detection levels.
        repeats: bottlenecks by level.
        conv: of the 3x3 convolutions; see Backbone.
    """

    def __init__(
        self,
        channels: dict[int, int],
        levels: Sequence[int],
        repeats: dict[int, int],
        conv: Convolution,
    ) -> None:
        super().__init__()
        down = range(max(channels) - 1, min(levels) - 1, -1)
        up = range(min(levels) + 1, max(levels) + 1)
        self.lateral = nn.ModuleDict()
        self.top_down = nn.ModuleDict()
        self.down = nn.ModuleDict()
        self.bottom_up = nn.ModuleDict()
        for k in down:
            self.lateral[str(k)] = Conv(channels[k + 1], channels[k])
        for k in down:
            self.top_down[str(k)] = C3(2 * channels[k], channels[k], repeats[k], False, conv)
        for k in up:
            self.down[str(k)] = conv(channels[k - 1], channels[k - 1], kernel=3, stride=2)
        for k in up:
            self.bottom_up[str(k)] = C3(2 * channels[k - 1], channels[k], repeats[k], False, conv)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, maps: dict[int, Tensor]) -> list[Tensor]:
        x = maps[max(list(maps))]  # torch 2.6 does not trace max of a dictionary
        laterals = {}
        for k in self.lateral:  # coarse to fine
            laterals[int(k)] = self.lateral[k](x)
            x = self.top_down[k](concatenate(self.upsample(laterals[int(k)]), maps[int(k)]))
        outputs = [x]
        for k in self.bottom_up:  # fine to coarse
            x = self.bottom_up[k](concatenate(self.down[k](x), laterals[int(k) - 1]))
            outputs.append(x)
        return outputs


class YOLOv5(nn.Module):
    """A detector network: image (B, 3, H, W) in 0..1, sides multiples of `max_stride` -> the head's
    raw prediction, a tensor per level.

    Args:
        num_classes: C.
        size: see NetworkOptions.
        options: further NetworkOptions, by name.

    Attributes:
        levels: detection levels.
        strides: of the detection levels.
        max_stride: of the top level.
        activation: see NetworkOptions; the tensors do not show it.
        origins: of the weights; functions that load some add to it.

    Raises:
        InputError: the options make no network.
    """

    def __init__(self, num_classes: PositiveInt, size: str = "n", **options: Any) -> None:
        check_arguments(YOLOv5, locals())
        given = NetworkOptions(size, **options)
        if size not in SIZES:
            hint = nearest(size.removeprefix("yolov5"), SIZES)
            raise InputError(f"model.network.size '{size}' is not known; {hint}")
        row = SIZES[size]
        depth = given.depth_multiple or row.depth
        width = given.width_multiple or row.width
        if max(depth, width) > MAX_MULTIPLE:  # a file may hold any number
            raise InputError(
                f"model.network.depth_multiple is {depth:g} and model.network.width_multiple"
                f" {width:g}; both must be at most {MAX_MULTIPLE}"
            )
        levels = row.levels if given.levels is None else tuple(given.levels)
        if not levels or all(LEVELS[i : i + len(levels)] != levels for i in range(len(LEVELS))):
            raise InputError(
                f"model.network.levels {list(levels)}: give consecutive levels between 2 and 7,"
                " like [3, 4, 5]"
            )
        if given.activation not in ACTIVATIONS:
            raise InputError(
                f"model.network.activation '{given.activation}' is not known;"
                f" {nearest(given.activation, ACTIVATIONS)}"
            )
        top = max(5, levels[-1])
        channels = {k: math.ceil(c * width / 8) * 8 for k, c in enumerate(CHANNELS[top], 1)}
        neck_repeats = {}
        for k in range(min(levels), top + 1):
            neck_repeats[k] = 1 if k == 2 else _scaled_repeats(3, depth)

        super().__init__()
        self.levels = levels
        self.strides = [2**k for k in levels]
        self.max_stride = 2**top
        conv: Convolution = DepthwiseConv if given.backbone == "yolox_depthwise" else Conv
        self.backbone = _backbone(given.backbone, channels, depth, min(levels), conv)
        self.neck = Neck(channels, levels, neck_repeats, conv)
        head_channels = [channels[k] for k in levels]
        self.head: Head
        if given.head is None:
            self.head = AnchorHead(head_channels, self.strides, num_classes, given.anchors)
        elif given.anchors is not None:
            raise InputError(
                "model.network.anchors is for the built-in head: make it null, and give those of a"
                " custom head to model.network.head.init_args"
            )
        else:
            head = given.to_dict()["head"]  # by class_path and init_args
            arguments = (head_channels, self.strides, num_classes)
            self.head = build_part(head, Head, "model.network.head", *arguments)  # type: ignore[type-abstract]
        self.activation = given.activation
        if given.activation != "silu":
            for module in self.modules():
                if isinstance(module, Conv):
                    module.act = ACTIVATIONS[given.activation]()
        set_momentum(self, given.bn_momentum)
        self.origins: list[Origin] = []

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.head(self.neck(self.backbone(images)))

    def anchor_head(self) -> AnchorHead | None:
        """The head, if it is an AnchorHead."""
        return self.head if isinstance(self.head, AnchorHead) else None

    def fused(self) -> Self:
        """A copy in evaluation mode, with batch norms folded into their convolutions, except those
        of a timm backbone."""
        network = copy.deepcopy(self).eval()
        for module in network.modules():
            if isinstance(module, Conv):
                module.fuse()
        return network.requires_grad_(False)

    def layer_names(self) -> dict[int, str]:
        """YOLOv5's layer number -> the module here, in forward order: what `freeze: 10` and
        published weights refer to.

        >>> names = YOLOv5(1).layer_names()
        >>> [names[i] for i in (0, 1, 2, 9, 10, 13, 18, 20, 24)]
        ['backbone.stem', 'backbone.down.2', 'backbone.c3.2', 'backbone.sppf', 'neck.lateral.4', 'neck.top_down.4', \
'neck.down.4', 'neck.bottom_up.4', 'head']
        """  # noqa: E501
        order: list[str | None] = []  # None: a layer without weights: upsample, concatenate
        for name in self.backbone.layer_names():
            order.append(None if name is None else f"backbone.{name}".rstrip("."))
        for k in self.neck.lateral:
            order += [f"neck.lateral.{k}", None, None, f"neck.top_down.{k}"]
        for k in self.neck.bottom_up:
            order += [f"neck.down.{k}", None, f"neck.bottom_up.{k}"]
        order.append("head")
        return {i: name for i, name in enumerate(order) if name}


def _backbone(
    name: str, channels: dict[int, int], depth: float, low: int, conv: Convolution
) -> Backbone | TimmBackbone:
    """The backbone with the neck's channels by level; low: the lowest level that the neck uses."""
    if name.startswith(PREFIX):
        return TimmBackbone(name.removeprefix(PREFIX), channels, low)
    if name not in BACKBONES:
        hint = nearest(name, list(BACKBONES) + [f"{PREFIX}NAME"])
        raise InputError(f"model.network.backbone '{name}' is not known; {hint}")
    repeats = {}
    for k in range(2, max(channels) + 1):
        repeats[k] = _scaled_repeats(BACKBONES[name][k], depth)
    return Backbone(channels, repeats, name != "yolov5", conv)


def _scaled_repeats(repeats: int, depth: float) -> int:
    """A block's repeats at a depth multiple, at least one.

    >>> _scaled_repeats(9, 0.33), _scaled_repeats(3, 0.1)
    (3, 1)
    """
    return max(round(repeats * depth), 1)


def empty_network(num_classes: int, options: Mapping[str, Any]) -> YOLOv5:
    """A network without memory for its tensors (device `meta`), for names and shapes.

    Args:
        num_classes: of the network.
        options: of NetworkOptions, by name.

    Raises:
        InputError: the options make no network.
    """
    with torch.device("meta"):
        return NetworkOptions(**options).build(num_classes)
