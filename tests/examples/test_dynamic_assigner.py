"""The example of an assigner: what it awards, and a training with it."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from made_heads import head_of, only_valid

from examples.dynamic_assigner import DynamicAssigner

STRIDES = [8, 16]
ANCHORS = torch.tensor([[[1.5, 2.0], [3.0, 1.5]], [[2.0, 2.0], [4.0, 5.0]]])  # in strides
HEAD = head_of(ANCHORS, STRIDES)


def drawn(seed, objects, classes):
    """Raw predictions for two images of 48 x 64 pixels, and targets."""
    rng = torch.Generator().manual_seed(seed)
    raw = [torch.randn(2, 2, 48 // s, 64 // s, 5 + classes, generator=rng) * 2 for s in STRIDES]
    targets = torch.rand(objects, 6, generator=rng)
    targets[:, :2] = (targets[:, :2] * torch.tensor([2, classes])).long()
    targets[:, 2:4] = targets[:, 2:4].clamp(0.01, 0.99)
    targets[:, 4:] = 0.02 + targets[:, 4:] ** 2 * 0.8
    return raw, targets


@given(
    st.integers(0, 10_000), st.integers(0, 12), st.sampled_from([1, 3]), st.sampled_from([1.2, 4.0])
)
def test_what_it_awards(seed, objects, classes, anchor_t):
    """To each object predictions in its cell and the four beside it, of anchors that fit if there
    are any; no prediction twice."""
    raw, targets = drawn(seed, objects, classes)
    awarded = []
    numbers = set()
    for level, rows in enumerate(DynamicAssigner(anchor_t).assign(raw, targets, HEAD)):
        own = only_valid(rows)
        number = rows.valid.nonzero()[:, 0] // max(len(rows.cls) // max(objects, 1), 1)
        numbers |= set(number.tolist())
        cells = torch.stack((own.image, own.anchor, own.row, own.column), 1)
        awarded += [(level, *cell) for cell in cells.tolist()]
        grid = torch.tensor([raw[level].shape[3], raw[level].shape[2]])
        centres = (own.box[:, :2] + cells[:, [3, 2]]) / grid
        expected = torch.cat((own.image[:, None], own.cls[:, None], centres), 1)
        torch.testing.assert_close(expected, targets[number, :4])
        torch.testing.assert_close(own.box[:, 2:] / grid, targets[number, 4:])
        steps = (own.box[:, :2].floor().abs()).sum(1)
        assert (steps <= 1).all()
    assert len(set(awarded)) == len(awarded)
    if anchor_t == 4.0 and objects <= 3:
        assert numbers == set(range(objects)), "nobody goes without"
