"""Unsure objects in the loss, compared with a slow loop over all predictions."""

from itertools import product

import pytest
import torch
from made_networks import small
from torch import Tensor

from boltbox.detector.model.assigner import Assignment, YOLOv5Assigner
from boltbox.detector.model.loss import DetectionLoss
from boltbox.detector.model.unsure import UNSURE, nobody_looked

CLASSES = 3
TARGETS = torch.tensor([[0, 1, 0.3, 0.4, 0.2, 0.3], [1, 0, 0.6, 0.6, 0.4, 0.3]])
BOXES = torch.tensor([[1, UNSURE, 0.2, 0.2, 0.2, 0.25], [1, UNSURE, 0.62, 0.6, 0.4, 0.3]])
UNKNOWN = torch.tensor([[1, nobody_looked(2), 0.5, 0.5, 1, 1], [1, nobody_looked(0), 0.1, 0.2, 0.1, 0.1]])  # fmt: skip


def cells(rows: Assignment) -> set[tuple[int, ...]]:
    valid = rows.valid
    assert valid is not None
    columns = (rows.image[valid], rows.anchor[valid], rows.row[valid], rows.column[valid])
    return set(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("unsure", [BOXES, UNKNOWN, torch.cat((UNKNOWN, BOXES))])
def test_what_is_undecided_has_no_gradient(unsure: Tensor) -> None:
    """In the objectness, of which all else has the share that it would have without. Boxes and
    classes are learned alike."""
    head, assigner = small(CLASSES).head, YOLOv5Assigner()
    loss = DetectionLoss(CLASSES, [8, 16, 32])
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, n, n, 5 + CLASSES) for n in (8, 4, 2)]
    raw = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    plain = torch.autograd.grad(loss(raw, TARGETS, head)[0], raw)
    found = torch.autograd.grad(loss(raw, TARGETS, head, unsure)[0], raw)
    boxes = unsure[unsure[:, 1] == UNSURE]
    closed = {(int(i), -2 - int(c)) for i, c in unsure[:, :2] if c < UNSURE}
    levels = zip(
        raw, plain, found, assigner.assign(raw, TARGETS, head), assigner.assign(raw, boxes, head), strict=True
    )  # fmt: skip
    everywhere = 0
    for maps, before, after, objects, maybe in levels:
        left_out = cells(maybe)
        for cell in product(*map(range, maps.shape[:4])):
            if (cell[0], int(maps[cell][5:].argmax())) in closed:
                left_out.add(cell)
        left_out -= cells(objects)
        everywhere += len(left_out)
        counted = torch.ones(maps.shape[:4])
        for cell in left_out:
            counted[cell] = 0
        share = counted.numel() / counted.sum()
        assert torch.allclose(after[..., 4], before[..., 4] * counted * share, rtol=1e-4, atol=1e-9)
        assert torch.equal(after[..., :4], before[..., :4])
        assert torch.equal(after[..., 5:], before[..., 5:])
    assert everywhere > 5


def test_a_loss_of_ones_own_is_not_given_them() -> None:
    class Own(DetectionLoss):
        takes_unsure = False

    head = small(CLASSES).head
    raw = [torch.randn(2, 3, n, n, 5 + CLASSES) for n in (8, 4, 2)]
    own = Own(CLASSES, [8, 16, 32])
    assert torch.equal(own(raw, TARGETS, head, BOXES)[0], own(raw, TARGETS, head)[0])
