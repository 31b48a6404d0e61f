"""How the numbers of a head stand for a box: the one place that decodes."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

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
