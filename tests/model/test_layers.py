"""Layers beside plain torch."""

import torch

from boltbox.detector.model.layers import Conv, concatenate


def test_concatenation_is_torchs_with_dense_gradients() -> None:
    """In channels-last memory, of two precisions, as under autocast."""
    generator = torch.Generator().manual_seed(0)
    maps = []
    for channels, dtype in ((3, torch.float32), (5, torch.bfloat16)):
        values = torch.randn(2, channels, 4, 6, generator=generator).to(dtype)
        maps.append(values.contiguous(memory_format=torch.channels_last))
    weight = torch.randn(2, 8, 4, 6, generator=generator)
    weight = weight.contiguous(memory_format=torch.channels_last)
    strides: list[tuple[int, ...]] = []
    outcomes = []
    for join in (concatenate, lambda *m: torch.cat(m, 1)):
        leaves = [m.clone().requires_grad_() for m in maps]
        inner = [leaf * 2 for leaf in leaves]
        if join is concatenate:
            for x in inner:
                x.register_hook(lambda g: strides.append(g.stride()))
        y = join(*inner)
        (y * weight).sum().backward()
        outcomes.append([y.detach()] + [leaf.grad for leaf in leaves])
    for ours, reference in zip(*outcomes, strict=True):
        assert ours.dtype == reference.dtype
        assert torch.equal(ours, reference)
    assert sorted(strides) == sorted(m.stride() for m in maps)


def test_a_fused_block_works_in_place_and_one_in_training_does_not() -> None:
    block = Conv(3, 4)
    assert not block.act.inplace
    block.fuse()
    assert block.act.inplace
