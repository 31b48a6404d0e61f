"""Box formats: conversions, NumPy as torch, overlaps against a slow loop."""

import numpy as np
import pytest
import torch
from made_samples import random_boxes

from boltbox.detector.model.boxes import (
    iou_cxcywh,
    pairwise_iou_xyxy,
    xyxy_to_cxcywh,
)


def test_overlaps_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    a = random_boxes(rng, 20, 50, 50)
    b = random_boxes(rng, 20, 50, 50)
    ours = pairwise_iou_xyxy(a, b)
    assert np.count_nonzero(ours) > 20
    for i, (ax1, ay1, ax2, ay2) in enumerate(a.tolist()):
        for j, (bx1, by1, bx2, by2) in enumerate(b.tolist()):
            shared = max(min(ax2, bx2) - max(ax1, bx1), 0) * max(min(ay2, by2) - max(ay1, by1), 0)
            union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
            assert ours[i, j] == pytest.approx(shared / union, abs=1e-5)
    centred = (torch.from_numpy(xyxy_to_cxcywh(x)) for x in (a, b))
    np.testing.assert_allclose(iou_cxcywh(*centred, kind="iou"), np.diag(ours), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sides", [(0.0, 0.0), (1e-30, 1e-40)])
def test_ciou_of_a_box_without_area_is_finite(sides: tuple[float, float]) -> None:
    """A network may predict sides that underflow."""
    pred = torch.tensor([[1.0, 2.0, *sides]], requires_grad=True)
    value = iou_cxcywh(pred, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), kind="ciou")
    value.sum().backward()
    assert pred.grad is not None
    assert value.isfinite().all()
    assert pred.grad.isfinite().all()
