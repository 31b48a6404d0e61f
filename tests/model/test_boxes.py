"""Box formats: conversions, NumPy as torch, overlaps against a slow loop."""

import numpy as np
import pytest
import torch
from made_samples import random_boxes

from boltbox.detector.model.boxes import (
    area_xyxy,
    clip_xyxy,
    cxcywh_to_xyxy,
    cxcywhn_to_xyxy,
    iou_cxcywh,
    pairwise_iou_xyxy,
    xyxy_to_cxcywh,
    xyxy_to_cxcywhn,
)


def test_conversions_in_numbers() -> None:
    """Of arrays and of tensors, in the dtype of the argument."""
    for convert, given, expected in (
        (xyxy_to_cxcywh, [[40.0, 15, 60, 35]], [[50, 25, 20, 20]]),
        (cxcywh_to_xyxy, [[50.0, 25, 20, 24]], [[40, 13, 60, 37]]),
        (lambda b: xyxy_to_cxcywhn(b, 100, 50), [[40.0, 15, 60, 35]], [[0.5, 0.5, 0.2, 0.4]]),
        (
            lambda b: cxcywhn_to_xyxy(b, 100, 50),
            [[0.5, 0.5, 0.25, 0.5]],
            [[37.5, 12.5, 62.5, 37.5]],
        ),
        (lambda b: clip_xyxy(b, 100, 50), [[-3.0, 5, 120, 60]], [[0, 5, 100, 50]]),
        (area_xyxy, [[[1.0, 2, 4, 6]]], [[12]]),
    ):
        for dtype in (np.float32, np.float64):
            boxes = np.array(given, dtype)
            ours = convert(boxes)
            as_tensor = convert(torch.from_numpy(boxes))
            assert isinstance(as_tensor, torch.Tensor)
            assert ours.dtype == dtype
            assert np.array_equal(ours, np.array(expected, dtype))
            assert np.array_equal(ours, as_tensor.numpy())


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
