"""Heads: from the neck's maps to predictions, and from predictions to boxes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from boltbox.detector.model.anchors import default_anchors, in_level_order
from boltbox.detector.system.errors import InputError


class BoxCoder(ABC):
    """Four numbers of a prediction -> a box, relative to a cell and, if the head has anchors, to an
    anchor.

    A box is cx, cy, w, h in grid units: 1 is the side of a cell, which is the level's stride in
    pixels. The centre is counted from the upper left corner of the cell. Loss, decoding and
    exported graphs all go through here.
    """

    @abstractmethod
    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """(..., 4) numbers of the head, (..., 2) width and height of the anchors in grid units or
        None -> (..., 4) boxes.

        It must be differentiable, and is traced by exporters: no `if` on the values of tensors.
        """


class YOLOv5BoxCoder(BoxCoder):
    """The centre lies between -0.5 and 1.5 cells from the corner, a side is up to 4 times the
    anchor's.

    Raises:
        InputError: the head has no anchors.
    """

    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """See BoxCoder."""
        if anchors is None:
            raise InputError(
                "YOLOv5BoxCoder needs anchors, which this head does not have: give the head a box"
                " coder of its own"
            )
        xy = numbers[..., :2].sigmoid() * 2 - 0.5
        wh = (numbers[..., 2:4].sigmoid() * 2) ** 2 * anchors
        return torch.cat((xy, wh), -1)


class Head(nn.Module, ABC):
    """The base class of heads. A head of your own (`model.network.head`, docs/parts.md) is called
    with `channels`, `strides` and `num_classes`, and whatever its init_args say:

        def __init__(self, channels: Sequence[int], strides: Sequence[int], num_classes: int, ...)

    channels: of the neck's map of each level, finest first. strides: pixels a cell, of each level.

    What `forward` gives is the *raw* prediction, a tensor a level. If that is (B, A, H, W, 5 + C),
    where A boxes a cell have four numbers for the box coder, a logit of objectness and C logits of
    the classes, everything here works as it is, and so do the built-in loss and assigner. Any other
    layout needs `decode` and `rows_per_level`, and a loss of its own.

    Buffers of the head itself are what `decode` needs; they stay in float32 in an exported file of
    float16.
    """

    # (levels, A, 2) width and height in units of each level's stride; None: a head without anchors
    anchors: Tensor | None

    def __init__(
        self, strides: Sequence[int], num_classes: int, box_coder: BoxCoder, num_anchors: int = 1
    ) -> None:
        """box_coder: what its numbers mean. num_anchors: A, boxes a cell."""
        super().__init__()
        self.strides, self.num_classes, self.num_anchors = list(strides), num_classes, num_anchors
        self.box_coder = box_coder
        self.register_buffer("anchors", None)

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """(B, channels, H, W) a level -> the raw prediction of each level."""

    def boxes(self, raw: Sequence[Tensor]) -> list[Tensor]:
        """Per level (B, A, H, W, 4) float32: cx, cy, w, h in pixels of the network's input."""
        parts = []
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
            parts.append(torch.cat((boxes[..., :2] + corner, boxes[..., 2:]), -1) * stride)
        return parts

    def decode(self, raw: Sequence[Tensor]) -> Tensor:
        """The raw prediction -> float32 (B, R, 5 + C): cx, cy, w, h in pixels of the network's
        input, objectness, class scores, which are multiplied together later; a head without
        objectness gives 1 there. The rows are ordered by level, anchor, row, column."""
        scores = [maps.float().sigmoid()[..., 4:] for maps in raw]
        pairs = zip(self.boxes(raw), scores, strict=True)
        return torch.cat([torch.cat(pair, -1).flatten(1, 3) for pair in pairs], 1)

    def rows_per_level(self, height: int, width: int) -> list[int] | None:
        """How many of the R rows belong to each level, for an input of this many pixels; None: rows
        are not ordered by level, and test-time augmentation keeps them all."""
        return [
            self.num_anchors * (height // stride) * (width // stride) for stride in self.strides
        ]


class AnchorHead(Head):
    """YOLOv5's head, a 1x1 convolution a level: (B, C, H, W) -> logits (B, A, H, W, 5 +
    num_classes) of x, y, w, h, objectness, classes.

    Args:
        channels, strides, num_classes: see Head.
        anchors: a row a level of pixels w, h, w, h, ... (levels in the wrong order are reversed); a
            number: this many default anchors a level; None: the defaults of these levels.

    Raises:
        InputError: anchors that do not fit the levels.
    """

    anchors: Tensor

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        anchors: Sequence[Sequence[float]] | int | None = None,
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
        """Start from what is likely before seeing the image (Lin et al. 2017, arXiv 1708.02002,
        section 3.3): 8 objects in a 640 px image for objectness, 0.6 objects' worth over the
        classes."""
        for conv, stride in zip(self.convs, self.strides, strict=True):
            assert isinstance(conv, nn.Conv2d)
            assert conv.bias is not None
            bias = conv.bias.view(self.num_anchors, -1)  # (A, 5 + C)
            bias[:, 4] += math.log(8 / (640 / stride) ** 2)
            bias[:, 5:] += math.log(0.6 / (self.num_classes - 0.99999))


def _anchor_pixels(
    anchors: Sequence[Sequence[float]] | int | None, strides: Sequence[int]
) -> np.ndarray:
    """(levels, A, 2) float32, levels in the order of the strides."""
    if isinstance(anchors, int) and not 1 <= anchors <= 20:
        raise InputError(
            f"model.network.anchors {anchors}: give 1 to 20 anchors a level, or a list of them"
        )
    if anchors is None or isinstance(anchors, int):
        anchors = default_anchors([stride.bit_length() - 1 for stride in strides], anchors or 3)
    lengths, flat = {len(row) for row in anchors}, [v for row in anchors for v in row]
    if (
        len(anchors) != len(strides)
        or len(lengths) > 1
        or 0 in lengths
        or len(anchors[0]) % 2
        or not all(0 < v < math.inf for v in flat)
    ):
        rows = f"one row of positive pixels w, h, w, h, ... for each of the {len(strides)} levels"
        raise InputError(f"model.network.anchors: give {rows}")
    return in_level_order(np.array(anchors, np.float32).reshape(len(anchors), -1, 2), strides)
