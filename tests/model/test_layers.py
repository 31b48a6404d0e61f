"""Layers beside plain torch."""

import torch

from boltbox.detector.model.layers import Conv, concatenate


def test_concatenation_is_torchs_with_dense_gradients():
    maps = [torch.randn(2, channels, 4, 6, requires_grad=True) for channels in (3, 5)]
    weight = torch.randn(2, 8, 4, 6)
    ours = torch.autograd.grad((concatenate(*maps) * weight).sum(), maps)
    reference = torch.autograd.grad((torch.cat(maps, 1) * weight).sum(), maps)
    for gradient, expected in zip(ours, reference, strict=True):
        assert torch.equal(gradient, expected)
        assert gradient.is_contiguous()


def test_a_fused_block_works_in_place_and_one_in_training_does_not():
    block = Conv(3, 4)
    assert not block.act.inplace
    block.fuse()
    assert block.act.inplace
