"""Box formats: conversions, NumPy as torch, overlaps against a slow loop."""

import pytest
import torch

from boltbox.detector.model.boxes import (
    iou_cxcywh,
)


@pytest.mark.parametrize("sides", [(0.0, 0.0), (1e-30, 1e-40)])
def test_ciou_of_a_box_without_area_is_finite(sides):
    """A network may predict sides that underflow."""
    pred = torch.tensor([(1.0, 2.0) + sides], requires_grad=True)
    value = iou_cxcywh(pred, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), kind="ciou")
    value.sum().backward()
    assert pred.grad is not None
    assert value.isfinite().all()
    assert pred.grad.isfinite().all()
