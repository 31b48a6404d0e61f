"""YOLOX's head: decoupled, without anchors (Ge et al. 2021, arXiv 2107.08430). Child names are
those of its published weights, from which boxes and objectness are taken over."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from boltbox.detector.model.head import BoxCoder, Head
from boltbox.detector.model.layers import Conv, Convolution, DepthwiseConv


class YOLOXBoxCoder(BoxCoder):
    """The centre as an offset from the corner of the cell, the sides as logarithms, in grid
    units."""

    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """See BoxCoder."""
        return torch.cat((numbers[..., :2], numbers[..., 2:4].clamp(max=8.0).exp()), -1)


class YOLOXHead(Head):
    """Per level a 1x1 convolution, then two towers of two 3x3 convolutions: one for the classes,
    one for box and objectness.

    Args:
        channels, strides, num_classes: see Head.
        depthwise: the towers' convolutions are depthwise, as YOLOX-Nano's.
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
        self.cls_convs, self.reg_convs = towers(), towers()
        self.cls_preds, self.reg_preds = predictions(num_classes), predictions(4)
        self.obj_preds = predictions(1)
        for level in (*self.cls_preds, *self.obj_preds):
            nn.init.constant_(level.bias, -math.log(99))  # a hundredth of all cells has an object

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """(B, channels, H, W) a level -> (B, 1, H, W, 5 + C): box, objectness, classes."""
        outputs = []
        for level, x in enumerate(maps):
            x = self.stems[level](x)
            classes = self.cls_preds[level](self.cls_convs[level](x))
            box = self.reg_convs[level](x)
            parts = self.reg_preds[level](box), self.obj_preds[level](box), classes
            outputs.append(torch.cat(parts, 1).permute(0, 2, 3, 1).unsqueeze(1).contiguous())
        return outputs
