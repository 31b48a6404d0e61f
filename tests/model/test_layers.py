"""Layers beside plain torch."""

import pytest
import torch

from boltbox.detector.model.layers import Conv, concatenate


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_concatenation_is_torchs_with_dense_gradients(
    layout: torch.memory_format, precision: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    maps = [
        torch.randn(2, c, 4, 6, generator=generator).to(precision).contiguous(memory_format=layout)
        for c in (3, 5, 2)
    ]
    weight = (
        torch.randn(2, 10, 4, 6, generator=generator).to(precision).contiguous(memory_format=layout)
    )
    strides: list[tuple[int, ...]] = []
    gradients = []
    for joined in (concatenate, lambda *m: torch.cat(m, 1)):
        leaves = [m.clone().requires_grad_() for m in maps]
        inner = [leaf * 2 for leaf in leaves]
        if joined is concatenate:
            for x in inner:
                x.register_hook(lambda g: strides.append(g.stride()))
        y = joined(*inner)
        (y * weight).sum().backward()
        gradients.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)
    assert sorted(strides) == sorted(m.stride() for m in maps)


def test_concatenation_of_two_precisions() -> None:
    """As under autocast: each map's gradient has the map's type."""
    low = torch.ones(1, 2, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    high = torch.ones(1, 1, 2, 2, requires_grad=True)
    joined = concatenate(low, high)
    assert joined.dtype == torch.float32
    joined.sum().backward()
    assert (low.grad.dtype, high.grad.dtype) == (torch.bfloat16, torch.float32)


def test_a_fused_block_works_in_place_and_one_in_training_does_not() -> None:
    block = Conv(3, 4)
    assert not block.act.inplace
    block.fuse()
    assert block.act.inplace
