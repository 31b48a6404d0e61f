"""The options of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from boltbox.detector.model.head import BoxCoder, Head
from boltbox.detector.model.layers import set_momentum
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.parts import part_config
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import AboveZero, PositiveFloat

MAX_MULTIPLE = 16  # of depth and width


@dataclass(frozen=True)
class NetworkOptions:
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
        box_coder: Custom box coder, likewise.

    In Python head and box_coder are a class, or functools.partial of a class and its arguments.
    """

    size: str = "n"
    backbone: str = "yolov5"
    depth_multiple: PositiveFloat | None = None
    width_multiple: PositiveFloat | None = None
    levels: list[int] | None = None
    anchors: list[list[float]] | int | None = None
    activation: str = "silu"
    bn_momentum: AboveZero | None = None
    head: Callable[[Sequence[int], Sequence[int], int], Head] | None = None
    box_coder: Callable[[], BoxCoder] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The options by name, in plain types that a checkpoint holds."""
        return vars(self) | {
            "head": part_config(self.head, Head, "model.network.head"),
            "box_coder": part_config(self.box_coder, BoxCoder, "model.network.box_coder"),
        }

    def build(self, num_classes: int) -> YOLOv5:
        """The network, with fresh weights.

        Raises:
            InputError: the options make no network.
        """
        for name in ("depth_multiple", "width_multiple"):  # a file may hold any number
            value = getattr(self, name)
            if value is not None and value > MAX_MULTIPLE:
                raise InputError(
                    f"model.network.{name} is {value:g}; it must be at most {MAX_MULTIPLE}"
                )
        options = self.to_dict()
        momentum = options.pop("bn_momentum")
        network = YOLOv5(num_classes, **options)
        set_momentum(network, 0.1 if momentum is None else momentum)
        return network


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
