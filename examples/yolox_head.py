"""The YOLOX head: decoupled, anchor-free (Ge et al. 2021, arXiv 2107.08430).

Modules have the names of the published weights, so boxes and objectness load from them.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from boltbox.detector.model.head import BoxCoder, Head
from boltbox.detector.model.layers import Conv, Convolution, DepthwiseConv


class YOLOXBoxCoder(BoxCoder):
    """Centre: offset from the corner of the cell. Sides: logarithms. Unit: one cell."""

    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """See BoxCoder."""
        return torch.cat((numbers[..., :2], numbers[..., 2:4].clamp(max=8.0).exp()), -1)


class YOLOXHead(Head):
    """Per level a 1x1 convolution, then two towers of two 3x3 convolutions: one for the classes,
    one for box and objectness.

    Args:
        channels: See Head.
        strides: See Head.
        num_classes: See Head.
        depthwise: Use depthwise convolutions in the towers, as in YOLOX-Nano.
    """

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        depthwise: bool = False,
    ) -> None:
        super().__init__(strides, num_classes, YOLOXBoxCoder())
        conv: Convolution = DepthwiseConv if depthwise else Conv
        c = channels[0]

        def towers() -> nn.ModuleList:
            return nn.ModuleList(nn.Sequential(conv(c, c, 3), conv(c, c, 3)) for _ in channels)

        def predictions(count: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Conv2d(c, count, 1) for _ in channels)

        self.stems = nn.ModuleList(Conv(wide, c) for wide in channels)
        self.cls_convs = towers()
        self.reg_convs = towers()
        self.cls_preds = predictions(num_classes)
        self.reg_preds = predictions(4)
        self.obj_preds = predictions(1)
        for level in (*self.cls_preds, *self.obj_preds):
            nn.init.constant_(level.bias, -math.log(99))  # 1 % of all cells have an object

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Per level (B, channels, H, W) -> (B, 1, H, W, 5 + C): box, objectness, classes."""
        outputs = []
        for level, x in enumerate(maps):
            x = self.stems[level](x)
            classes = self.cls_preds[level](self.cls_convs[level](x))
            box = self.reg_convs[level](x)
            parts = self.reg_preds[level](box), self.obj_preds[level](box), classes
            outputs.append(torch.cat(parts, 1).permute(0, 2, 3, 1).unsqueeze(1).contiguous())
        return outputs
