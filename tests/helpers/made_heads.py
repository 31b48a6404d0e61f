"""A head with given anchors, for losses and assigners that are tried on maps of random numbers; and
their rows."""

import torch

from boltbox.detector.model.assigner import Assignment, YOLOv5Assigner
from boltbox.detector.model.head import AnchorHead

STRIDES = [8, 16, 32, 64]


def head_of(anchors, strides):
    """anchors: (levels, A, 2) in units of the strides, kept to the bit."""
    head = AnchorHead(
        [1] * len(anchors), strides, 1, [[1.0] * (2 * anchors.shape[1])] * len(anchors)
    )
    head.anchors = anchors
    return head


def losses(loss, raw, targets, anchors):
    """Total, and the parts in their order."""
    total, parts = loss(raw, targets, head_of(anchors, STRIDES[: len(anchors)]))
    return total, torch.stack(list(parts.values()))


def assign_targets(targets, anchors, shapes, anchor_t):
    """YOLOv5's assigner on maps of these (rows, columns)."""
    raw = [torch.empty(1, anchors.shape[1], *shape, 0) for shape in shapes]
    head = head_of(anchors, STRIDES[: len(anchors)])
    return YOLOv5Assigner(anchor_t).assign(raw, targets, head)


def only_valid(rows):
    """Without the rows that do not count."""
    if rows.valid is None:
        return rows
    return Assignment(*(field[rows.valid] for field in rows[:-1] if field is not None))
