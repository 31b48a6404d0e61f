"""Which cells and anchors answer for which object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from boltbox.detector.model.head import Head
from boltbox.detector.system.errors import InputError


class Assignment(NamedTuple):
    """The n rows of one level, each an (object, anchor, cell) triple: image, anchor, row, column
    (n,) int64 index the raw map; box (n, 4) cxcywh in grid units relative to the cell's corner; cls
    (n,) int64.

    valid (n,) bool: which rows count; None: all. With it n can be the number of candidates, which
    is known without looking at the targets' values: a GPU is not waited for, and a compiler sees
    one shape. The rows that do not count index a cell too.
    """

    image: Tensor
    anchor: Tensor
    row: Tensor
    column: Tensor
    box: Tensor
    cls: Tensor
    valid: Tensor | None = None


class Assigner(ABC):
    """The base class of assigners. One of your own is chosen by `model.loss.assigner`
    (docs/parts.md)."""

    @abstractmethod
    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """Match the objects of a batch with predictions.

        Args:
            raw: per level (B, A, H, W, 5 + C) float32 logits, as the head gave them. An assigner
                that looks at what was predicted (SimOTA, TaskAligned) takes the boxes from
                `head.boxes(raw)`, under torch.no_grad.
            targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's
                input; N may be 0.
            head: what gave them: its `strides`, and `anchors` (levels, A, 2) in units of each
                level's stride, or None.

        Returns:
            One Assignment a level; a cell may be given several objects, and an object several
                cells.
        """


class YOLOv5Assigner(Assigner):
    """Every anchor whose shape is within a factor of the box's, in the box's cell and the two
    nearest neighbour cells.

    Args:
        anchor_t: an anchor is matched if neither side differs by this factor or more.
    """

    def __init__(self, anchor_t: float = 4.0) -> None:
        self.anchor_t = anchor_t

    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """See Assigner. Of the raw maps only the shapes count; nothing is exclusive.

        Returns:
            One Assignment a level of 5 A N rows: own cells, then left, upper, right, lower
                neighbours, each by anchor, then by target; `valid` where anchor and neighbour
                match.

        Raises:
            InputError: the head has no anchors.
        """
        if head.anchors is None:
            raise InputError(
                f"{type(head).__name__} has no anchors, which YOLOv5Assigner needs: give another"
                " --model.loss.assigner"
            )
        image, cls = targets[:, :2].long().unbind(1)  # (N,)
        levels = []
        for level_anchors, maps in zip(head.anchors, raw, strict=True):
            rows, columns = maps.shape[2:4]
            # grid units
            x, y, w, h = (
                targets[:, 2] * columns,
                targets[:, 3] * rows,
                targets[:, 4] * columns,
                targets[:, 5] * rows,
            )
            ratio = torch.stack((w, h), 1) / level_anchors[:, None]  # (A, N, 2)
            matches = torch.max(ratio, 1 / ratio).amax(2) < self.anchor_t  # (A, N)

            # A neighbour shares the object if the centre lies in the half of the cell next to it
            # and the neighbour exists.
            left, right = _near(x), _near(columns - x)
            upper, lower = _near(y), _near(rows - y)
            chosen = torch.stack((torch.ones_like(left), left, upper, right, lower))  # (5, N)
            # Truncation toward zero, as YOLOv5's.
            column = torch.stack((x, x - 0.5, x, x + 0.5, x)).long().clamp(0, columns - 1)
            row = torch.stack((y, y, y - 0.5, y, y + 0.5)).long().clamp(0, rows - 1)
            # (5, N, 4)
            box = torch.stack((x - column, y - row, w.expand_as(row), h.expand_as(row)), 2)

            anchor = torch.arange(len(matches), device=row.device)[:, None]  # (A, 1)
            valid = chosen[:, None] & matches  # (5, A, N)
            levels.append(
                Assignment(
                    image.expand(valid.shape).flatten(),
                    anchor.expand(valid.shape).flatten(),
                    row[:, None].expand(valid.shape).flatten(),
                    column[:, None].expand(valid.shape).flatten(),
                    box[:, None].expand(*valid.shape, 4).reshape(-1, 4),
                    cls.expand(valid.shape).flatten(),
                    valid.flatten(),
                )
            )
        return levels


def _near(distance: Tensor) -> Tensor:
    """Whether the neighbour on this side exists and is the nearer one; distance (N,) of a centre
    from that edge of the map, in cells."""
    return (distance % 1 < 0.5) & (distance > 1)
