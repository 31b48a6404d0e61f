"""Which predictions are trained on which object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from boltbox.detector.model.head import Head
from boltbox.detector.system.errors import InputError


class Assignment(NamedTuple):
    """The n rows of one level: (object, anchor, cell) triples.

    Attributes:
        image: (n,) int64; image, anchor, row and column index the raw map.
        anchor: (n,) int64.
        row: (n,) int64.
        column: (n,) int64.
        box: (n, 4) cxcywh in grid units, relative to the cell's upper left corner.
        cls: (n,) int64.
        valid: (n,) bool: the rows that count; None: all. With it n can be the number of candidates,
            which does not depend on the values of tensors: no GPU has to be waited for, and a
            compiler sees one shape. Other rows index a cell too.
    """

    image: Tensor
    anchor: Tensor
    row: Tensor
    column: Tensor
    box: Tensor
    cls: Tensor
    valid: Tensor | None = None


class Assigner(ABC):
    """The base class of assigners. For a custom one see `model.loss.assigner` (docs/parts.md)."""

    @abstractmethod
    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """Match the objects of a batch with predictions.

        Args:
            raw: per level (B, A, H, W, 5 + C) float32 logits of the head. An assigner that depends
                on predictions (SimOTA, TaskAligned) gets their boxes by `head.boxes(raw)`, under
                torch.no_grad.
            targets: (N, 6) image, class, cx, cy, w, h; the last four as fractions of the network's
                input; N may be 0.
            head: the head that computed `raw`: its `strides`, and `anchors` (levels, A, 2) in units
                of each level's stride, or None.

        Returns:
            One Assignment per level. A cell may get several objects, and an object several cells.
        """


class YOLOv5Assigner(Assigner):
    """Every anchor whose sides are within a factor of the box's, in the cell of its centre and the
    two nearest neighbour cells.

    Args:
        anchor_t: an anchor matches if neither side differs by this factor or more.
    """

    def __init__(self, anchor_t: float = 4.0) -> None:
        self.anchor_t = anchor_t

    def assign(self, raw: Sequence[Tensor], targets: Tensor, head: Head) -> list[Assignment]:
        """See Assigner.

        Args:
            raw: only the shapes count.
            targets: see Assigner.
            head: see Assigner.

        Returns:
            One Assignment per level of 5 A N rows: own cells, then left, upper, right, lower
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
        image, cls = targets[:, :2].long().unbind(1)  # (N,) each
        levels = []
        for level_anchors, maps in zip(head.anchors, raw, strict=True):
            rows, columns = maps.shape[2:4]
            # (N,) each, in grid units
            x = targets[:, 2] * columns
            y = targets[:, 3] * rows
            w = targets[:, 4] * columns
            h = targets[:, 5] * rows
            ratio = torch.stack((w, h), 1) / level_anchors[:, None]  # (A, N, 2)
            matches = torch.max(ratio, 1 / ratio).amax(2) < self.anchor_t  # (A, N)

            # A neighbour exists and is near if the centre is in the half of the cell next to it.
            left = _near(x)
            right = _near(columns - x)
            upper = _near(y)
            lower = _near(rows - y)
            near = torch.stack((torch.ones_like(left), left, upper, right, lower))  # (5, N)
            # Truncation toward zero, as in YOLOv5. Both (5, N).
            column = torch.stack((x, x - 0.5, x, x + 0.5, x)).long().clamp(0, columns - 1)
            row = torch.stack((y, y, y - 0.5, y, y + 0.5)).long().clamp(0, rows - 1)
            box = torch.stack((x - column, y - row, w.expand_as(row), h.expand_as(row)), 2)

            anchor = torch.arange(len(matches), device=row.device)[:, None]  # (A, 1)
            valid = near[:, None] & matches  # (5, A, N)
            levels.append(
                Assignment(
                    image=image.expand(valid.shape).flatten(),
                    anchor=anchor.expand(valid.shape).flatten(),
                    row=row[:, None].expand(valid.shape).flatten(),
                    column=column[:, None].expand(valid.shape).flatten(),
                    box=box[:, None].expand(*valid.shape, 4).reshape(-1, 4),
                    cls=cls.expand(valid.shape).flatten(),
                    valid=valid.flatten(),
                )
            )
        return levels


def _near(distance: Tensor) -> Tensor:
    """Whether the neighbour on one side exists and is the nearer one, by the distance (N,) of the
    centre from that edge of the map, in cells."""
    return (distance % 1 < 0.5) & (distance > 1)
