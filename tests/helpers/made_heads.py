"""A head with given anchors, for losses and assigners that are tried on maps of random numbers; and
their rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from boltbox.detector.model.assigner import Assignment
from boltbox.detector.model.head import AnchorHead
from boltbox.detector.model.loss import Loss


def head_of(anchors: Tensor, strides: Sequence[int]) -> AnchorHead:
    """anchors: (levels, A, 2) in units of the strides, kept to the bit."""
    head = AnchorHead(
        [1] * len(anchors), strides, 1, [[1.0] * (2 * anchors.shape[1])] * len(anchors)
    )
    head.anchors = anchors
    return head


def losses(
    loss: Loss, raw: Sequence[Tensor], targets: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """Total, and the parts in their order."""
    strides = [2 ** (3 + k) for k in range(len(anchors))]
    total, parts = loss(raw, targets, head_of(anchors, strides))
    return total, torch.stack(list(parts.values()))


def only_valid(rows: Assignment) -> Assignment:
    """Without the rows that do not count."""
    if rows.valid is None:
        return rows
    return Assignment(*(field[rows.valid] for field in rows[:-1] if field is not None))
