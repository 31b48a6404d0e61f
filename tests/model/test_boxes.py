"""Box formats: conversions there and back, NumPy as torch, overlaps against a slow loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_samples import few, random_boxes, seeds

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


@given(seeds, st.integers(0, 6), st.integers(1, 5000), st.integers(1, 5000))
@few
def test_conversions_are_inverse(seed: int, n: int, width: int, height: int) -> None:
    boxes = random_boxes(np.random.default_rng(seed), n, width, height).astype(float)
    np.testing.assert_allclose(cxcywh_to_xyxy(xyxy_to_cxcywh(boxes)), boxes, rtol=0, atol=1e-9)
    fractions = xyxy_to_cxcywhn(boxes, width, height)
    assert fractions.min(initial=0.5) >= 0
    assert fractions.max(initial=0.5) <= 1
    np.testing.assert_allclose(cxcywhn_to_xyxy(fractions, width, height), boxes, rtol=0, atol=1e-9)


@given(seeds, st.integers(0, 6))
@few
def test_numpy_and_torch_agree(seed: int, n: int) -> None:
    boxes = np.random.default_rng(seed).uniform(-50, 150, (n, 4))
    for convert in (
        cxcywh_to_xyxy,
        xyxy_to_cxcywh,
        lambda b: cxcywhn_to_xyxy(b, 640, 480),
        lambda b: xyxy_to_cxcywhn(b, 640, 480),
        lambda b: clip_xyxy(b, 100, 80),
        area_xyxy,
    ):
        for dtype in (np.float32, np.float64):
            ours = convert(boxes.astype(dtype))
            theirs = convert(torch.from_numpy(boxes.astype(dtype)))
            assert isinstance(theirs, torch.Tensor)
            assert np.array_equal(ours, theirs.numpy())
            assert ours.dtype == dtype
            assert ours.shape == ((n,) if convert is area_xyxy else (n, 4))


def test_conversions_in_numbers() -> None:
    corners = np.array([[40.0, 15, 60, 35]])
    assert xyxy_to_cxcywh(corners).tolist() == [[50, 25, 20, 20]]
    assert xyxy_to_cxcywhn(corners, 100, 50).tolist() == [[0.5, 0.5, 0.2, 0.4]]
    assert cxcywhn_to_xyxy(np.array([[0.5, 0.5, 0.25, 0.5]]), 100, 50).tolist() == [
        [37.5, 12.5, 62.5, 37.5]
    ]
    assert clip_xyxy(np.array([[-3.0, 5, 120, 60]]), 100, 50).tolist() == [[0, 5, 100, 50]]
    assert area_xyxy(np.array([[[1.0, 2, 4, 6]]])).tolist() == [[12]], "any leading shape"


@given(seeds)
@few
def test_pairwise_iou_against_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = random_boxes(rng, 4, 50, 50)
    b = random_boxes(rng, 3, 50, 50)
    ours = pairwise_iou_xyxy(a, b)
    for i, (ax1, ay1, ax2, ay2) in enumerate(a.tolist()):
        for j, (bx1, by1, bx2, by2) in enumerate(b.tolist()):
            shared = max(min(ax2, bx2) - max(ax1, bx1), 0) * max(min(ay2, by2) - max(ay1, by1), 0)
            whole = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
            assert ours[i, j] == pytest.approx(shared / whole, abs=1e-5)
    centred = (torch.from_numpy(xyxy_to_cxcywh(x)) for x in (a[:3], b))
    np.testing.assert_allclose(iou_cxcywh(*centred, kind="iou"), np.diag(ours), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sides", [(0.0, 0.0), (3.0, 0.0), (0.0, 3.0), (1e-30, 1e-40)])
def test_ciou_of_a_box_without_area_is_finite(sides: tuple[float, float]) -> None:
    """A network may predict sides that underflow."""
    pred = torch.tensor([[1.0, 2.0, *sides]], requires_grad=True)
    value = iou_cxcywh(pred, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), kind="ciou")
    value.sum().backward()
    assert pred.grad is not None
    assert value.isfinite().all()
    assert pred.grad.isfinite().all()
