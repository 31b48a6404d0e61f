"""How the numbers of a head stand for a box: the one place that encodes and decodes."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from detector.system.errors import InputError

LEAST = 1e-6  # of a sigmoid's distance from 0 and 1, so that what is encoded is finite


class BoxCoder(ABC):
    """Four numbers of a prediction <-> a box, relative to a cell and, if the head has anchors, to an anchor.

    A box is cx, cy, w, h in grid units: 1 is the side of a cell, which is the level's stride in pixels. The centre is counted
    from the upper left corner of the cell. Loss, decoding and exported graphs all go through here.
    """

    @abstractmethod
    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """(..., 4) numbers of the head, (..., 2) width and height of the anchors in grid units or None -> (..., 4) boxes.

        It must be differentiable, and is traced by exporters: no `if` on the values of tensors.
        """

    @abstractmethod
    def encode(self, boxes: Tensor, anchors: Tensor | None) -> Tensor:
        """The opposite of `decode`: (..., 4) boxes -> (..., 4) numbers."""


class YOLOv5BoxCoder(BoxCoder):
    """The centre lies between -0.5 and 1.5 cells from the corner, a side is up to 4 times the anchor's.

    Raises:
        InputError: the head has no anchors.
    """

    def decode(self, numbers: Tensor, anchors: Tensor | None) -> Tensor:
        """See BoxCoder."""
        anchors = self._check(anchors)
        xy = numbers[..., :2].sigmoid() * 2 - 0.5
        wh = (numbers[..., 2:4].sigmoid() * 2) ** 2 * anchors
        return torch.cat((xy, wh), -1)

    def encode(self, boxes: Tensor, anchors: Tensor | None) -> Tensor:
        """See BoxCoder. Boxes outside the range of `decode` become the nearest that it can give."""
        anchors = self._check(anchors)
        shares = torch.cat(((boxes[..., :2] + 0.5) / 2, (boxes[..., 2:4] / anchors).sqrt() / 2), -1)
        return torch.logit(shares, LEAST)

    def _check(self, anchors: Tensor | None) -> Tensor:
        if anchors is None:
            raise InputError(
                "YOLOv5BoxCoder needs anchors, which this head does not have: give the head a box coder of its own"
            )
        return anchors
