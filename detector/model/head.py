"""Heads: from the neck's maps to predictions, and from predictions to boxes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boltbox.detector.model.anchors import default_anchors, in_level_order
from boltbox.detector.system.errors import InputError


class BoxCoder(ABC):
    """Four numbers of a prediction -> a box, relative to a cell and, if the head has anchors, to an
    anchor.

    A box is cx, cy, w, h in grid units: 1 is the side of a cell, which is the level's stride in
    pixels. The centre is relative to the cell's upper left corner. Loss, decoding and exported
    graphs all use this.
    """

    @abstractmethod
    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """Decode boxes. It must be differentiable, and is traced by exporters: no `if` on the
        values of tensors.

        Args:
            numbers: (..., 4) of the head.
            anchors: (..., 2) width and height in grid units, or None.

        Returns:
            (..., 4) boxes.
        """


class YOLOv5BoxCoder(BoxCoder):
    """The centre is between -0.5 and 1.5 cells from the corner, a side is up to 4 times the
    anchor's.

    Raises:
        InputError: the head has no anchors.
    """

    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """See BoxCoder."""
        if anchors is None:
            raise InputError(
                "YOLOv5BoxCoder needs anchors, which this head does not have: give the head another"
                " box coder"
            )
        xy = numbers[..., :2].sigmoid() * 2 - 0.5
        side = numbers[..., 2:4].sigmoid() * 2
        wh = side * side * anchors  # LiteRT has no power
        return torch.cat((xy, wh), -1)


class Head(nn.Module, ABC):
    """The base class of heads. A custom head (`model.network.head`, docs/parts.md) is called with
    `channels` and `strides` of the levels, finest first, `num_classes`, and its init_args:

        def __init__(self, channels: Sequence[int], strides: Sequence[int], num_classes: int, ...)

    `forward` gives the *raw* prediction, a tensor per level. If that is (B, A, H, W, 5 + C) for A
    boxes per cell, with four numbers for the box coder, a logit of objectness and C logits of
    classes, all methods here work, and so do the built-in loss and assigner. For any other layout
    override `decode` and `rows_per_level`, and use a custom loss.

    Buffers of the head are what `decode` needs; exported files of float16 keep them in float32.

    Args:
        strides: pixels per cell of each level.
        num_classes: C.
        box_coder: decodes its boxes.
        num_anchors: A, boxes per cell.

    Attributes:
        anchors: (levels, A, 2) width and height in units of each level's stride, or None.
    """

    anchors: Tensor | None

    def __init__(
        self, strides: Sequence[int], num_classes: int, box_coder: BoxCoder, num_anchors: int = 1
    ) -> None:
        super().__init__()
        self.strides = list(strides)
        self.num_classes = num_classes
        self.num_anchors = num_anchors
        self.box_coder = box_coder
        self.register_buffer("anchors", None)

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """(B, channels, H, W) per level -> the raw prediction of each level."""

    def boxes(self, raw: Sequence[Tensor]) -> list[Tensor]:
        """Per level (B, A, H, W, 4) float32: cx, cy, w, h in pixels of the network's input."""
        levels = []
        for level, (maps, stride) in enumerate(zip(raw, self.strides, strict=True)):
            a, h, w = maps.shape[1:4]
            numbers = maps[..., :4].float().contiguous()
            anchors = None if self.anchors is None else self.anchors[level].view(1, a, 1, 1, 2)
            boxes = self.box_coder.decode(numbers, anchors)  # in grid units, relative to the cell
            rows, columns = torch.meshgrid(
                torch.arange(h, device=maps.device),
                torch.arange(w, device=maps.device),
                indexing="ij",
            )
            corner = torch.stack((columns, rows), -1)  # (H, W, 2)
            levels.append(torch.cat((boxes[..., :2] + corner, boxes[..., 2:]), -1) * stride)
        return levels

    def decode(self, raw: Sequence[Tensor]) -> Tensor:
        """The raw prediction -> float32 (B, R, 5 + C): cx, cy, w, h in pixels of the network's
        input, objectness, class scores (not multiplied by objectness; a head without objectness
        gives 1 there). The rows are ordered by level, anchor, row, column."""
        levels = []
        for maps, boxes in zip(raw, self.boxes(raw), strict=True):
            scores = maps.float().sigmoid()[..., 4:]
            levels.append(torch.cat((boxes, scores), -1).flatten(1, 3))
        return torch.cat(levels, 1)

    def rows_per_level(self, height: int, width: int) -> list[int] | None:
        """The number of rows of `decode` of each level, for an input of this many pixels. None: the
        rows are not ordered by level, and test-time augmentation keeps them all."""
        return [
            self.num_anchors * (height // stride) * (width // stride) for stride in self.strides
        ]


class AnchorHead(Head):
    """YOLOv5's head, a 1x1 convolution per level: (B, channels, H, W) -> logits (B, A, H, W, 5 + C)
    of x, y, w, h, objectness, classes.

    Args:
        channels: see Head.
        strides: see Head.
        num_classes: see Head.
        anchors: one row of pixels w, h, w, h, ... per level (levels in the wrong order are
            reversed); a number: this many default anchors per level; None: the default of these
            levels.

    Raises:
        InputError: anchors that do not fit the levels.
    """

    anchors: Tensor

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        anchors: Sequence[Sequence[Any]] | int | None = None,
    ) -> None:
        pixels = torch.from_numpy(_anchor_pixels(anchors, strides))
        super().__init__(strides, num_classes, YOLOv5BoxCoder(), num_anchors=pixels.shape[1])
        self.register_buffer("anchors", torch.zeros(pixels.shape))
        self.set_anchors(pixels)
        self.convs = nn.ModuleList(
            nn.Conv2d(c, self.num_anchors * (5 + num_classes), 1) for c in channels
        )
        self.add_priors()

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        outputs = []
        for conv, x in zip(self.convs, maps, strict=True):
            b, _, h, w = x.shape
            y = conv(x).view(b, self.num_anchors, -1, h, w)  # (B, A, 5 + C, H, W)
            outputs.append(y.permute(0, 1, 3, 4, 2).contiguous())  # (B, A, H, W, 5 + C)
        return outputs

    @property
    def anchors_px(self) -> Tensor:
        """(levels, A, 2) width and height in pixels of the network's input."""
        return self.anchors * torch.tensor(self.strides, device=self.anchors.device).view(-1, 1, 1)

    def set_anchors(self, pixels: Tensor) -> None:
        """Use these anchors: (levels, A, 2) width and height in pixels of the network's input."""
        self.anchors.copy_(pixels / torch.tensor(self.strides, device=pixels.device).view(-1, 1, 1))

    @torch.no_grad()
    def add_priors(self) -> None:
        """Set the biases to what is likely before seeing an image (Lin et al. 2017, arXiv
        1708.02002, section 3.3): 8 objects per 640 px image for objectness, 0.6 over all
        classes."""
        for conv, stride in zip(self.convs, self.strides, strict=True):
            assert isinstance(conv, nn.Conv2d)
            assert conv.bias is not None
            bias = conv.bias.view(self.num_anchors, -1)  # (A, 5 + C)
            bias[:, 4] += math.log(8 / (640 / stride) ** 2)
            bias[:, 5:] += math.log(0.6 / (self.num_classes - 0.99999))


def _anchor_pixels(
    anchors: Sequence[Sequence[Any]] | int | None, strides: Sequence[int]
) -> np.ndarray:
    """(levels, A, 2) float32, levels in the order of the strides."""
    if isinstance(anchors, int) and not 1 <= anchors <= 20:
        raise InputError(
            f"model.network.anchors {anchors}: give 1 to 20 anchors per level, or a list of them"
        )
    levels = len(strides)
    if anchors is None or isinstance(anchors, int):
        per_level = 3 if anchors is None else anchors
        anchors = default_anchors([stride.bit_length() - 1 for stride in strides], per_level)
    try:
        pixels = np.array(anchors, np.float32).reshape(levels, -1, 2)
    except ValueError:  # rows of different lengths, or of an odd length
        pixels = np.zeros((levels, 0, 2), np.float32)
    valid = (pixels > 0) & np.isfinite(pixels)
    if pixels.size == 0 or len(anchors) != levels or not valid.all():
        raise InputError(
            "model.network.anchors: give one row of positive pixels w, h, w, h, ... for each of"
            f" the {levels} levels"
        )
    return in_level_order(pixels, strides)
