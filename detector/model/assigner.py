"""Which cells and anchors answer for which object."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from detector.model.head import Head
from detector.system.errors import InputError


class Assignment(NamedTuple):
    """The n rows of one level, each an (object, anchor, cell) triple: image, anchor, row, column (n,) int64 index the raw map;
    box (n, 4) cxcywh in grid units relative to the cell's corner; cls (n,) int64."""

    image: Tensor
    anchor: Tensor
    row: Tensor
    column: Tensor
    box: Tensor
    cls: Tensor


class Assigner(ABC):
    """The base class of assigners. One of your own is chosen by `model.assigner` (docs/parts.md)."""

    @abstractmethod
    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """Match the objects of a batch with predictions.

        Args:
            raw: per level (B, A, H, W, 5 + C) float32 logits, as the head gave them. An assigner that looks at what was
                predicted (SimOTA, TaskAligned) takes the boxes from `head.boxes(raw)`, under torch.no_grad.
            targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's input; N may be 0.
            head: what gave them: its `strides`, and `anchors` (levels, A, 2) in units of each level's stride, or None.

        Returns:
            One Assignment a level; a cell may be given several objects, and an object several cells.
        """


def map_shapes(raw: Sequence[Tensor]) -> list[tuple[int, int]]:
    """(rows, columns) of each level's map, of (B, A, H, W, 5 + C)."""
    return [(maps.shape[2], maps.shape[3]) for maps in raw]


class YOLOv5Assigner(Assigner):
    """Every anchor whose shape is within a factor of the box's, in the box's cell and the two nearest neighbour cells.

    Args:
        anchor_t: an anchor is matched if neither side differs by this factor or more.
    """

    def __init__(self, anchor_t: float = 4.0) -> None:
        self.anchor_t = anchor_t

    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """See Assigner.

        Raises:
            InputError: the head has no anchors.
        """
        if head.anchors is None:
            raise InputError(f"{type(head).__name__} has no anchors, which YOLOv5Assigner needs: give another --model.assigner")
        return assign_targets(targets, head.anchors, map_shapes(raw), self.anchor_t)


def assign_targets(targets: Tensor, anchors: Tensor, shapes: list[tuple[int, int]], anchor_t: float) -> list[Assignment]:
    """Match objects with anchors and cells on every level; nothing is exclusive.

    Args:
        targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's input.
        anchors: (levels, A, 2) in units of each level's stride.
        shapes: (rows, columns) of each level's map.
        anchor_t: an anchor is matched if neither side differs by this factor or more.

    Returns:
        One Assignment a level. Rows: own cells, then left, upper, right, lower neighbours, each by anchor, then by target.
    """
    levels = []
    for level_anchors, (rows, columns) in zip(anchors, shapes, strict=True):
        grid = targets.new_tensor([columns, rows])  # (2,) width and height of the map
        centre, size = targets[:, 2:4] * grid, targets[:, 4:6] * grid  # (N, 2) grid units
        ratio = size / level_anchors[:, None]  # (A, N, 2)
        matches = torch.max(ratio, 1 / ratio).amax(2) < anchor_t  # (A, N)
        anchor, target = matches.nonzero(as_tuple=True)
        xy = centre[target]  # (m, 2)

        # A neighbour shares the object if the centre lies in the half of the cell next to it and the neighbour exists.
        near_low = (xy % 1 < 0.5) & (xy > 1)  # (m, 2): left, upper
        near_high = ((grid - xy) % 1 < 0.5) & (grid - xy > 1)  # (m, 2): right, lower
        shifts = xy.new_tensor([[0, 0], [-0.5, 0], [0, -0.5], [0.5, 0], [0, 0.5]])
        chosen = torch.stack([torch.ones_like(near_low[:, 0]), *near_low.T, *near_high.T])  # (5, m)
        shift, match = chosen.nonzero(as_tuple=True)
        anchor, target, xy = anchor[match], target[match], xy[match]

        cell = (xy + shifts[shift]).long()  # truncation toward zero, as YOLOv5's
        column, row = cell[:, 0].clamp(0, columns - 1), cell[:, 1].clamp(0, rows - 1)
        box = torch.cat((xy - torch.stack((column, row), 1), size[target]), 1)
        image, cls = targets[target, :2].long().T
        levels.append(Assignment(image, anchor, row, column, box, cls))
    return levels
