"""Depthwise convolutions under a CPU's autocast: which are computed in float32, and that these are
so to the last bit."""

import pytest
import torch
from torch import Tensor, nn

from boltbox.detector.model.depthwise import depthwise_in_float32, is_slow
from boltbox.detector.model.timm_backbone import TimmBackbone


def gradients(conv: nn.Conv2d, x: Tensor) -> list[Tensor]:
    """Output and gradients, of a loss in which every number counts."""
    conv.zero_grad()
    x = x.detach().requires_grad_()
    y = conv(x).bfloat16()
    (y.float() * torch.arange(y.numel()).view(y.shape).cos()).sum().backward()
    return [y, x.grad, conv.weight.grad]


@pytest.mark.parametrize(
    ("conv", "slow"),
    [
        (nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), True),
        (nn.Conv2d(8, 8, 5, 1, 2, groups=8, bias=False), True),
        (nn.Conv2d(8, 16, 5, 2, 2, groups=8), True),
        (nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), False),
        (nn.Conv2d(8, 8, 3, 2, 1, groups=4), False),
        (nn.Conv2d(8, 8, 3, 2, 1), False),
        (nn.Conv2d(1, 1, 3, 2, 1), False),
    ],
)
def test_slow_depthwise_convolutions_are_float32s(conv: nn.Conv2d, slow: bool) -> None:
    x = torch.randn(2, conv.in_channels, 12, 10, generator=torch.Generator().manual_seed(0))
    whole = gradients(conv, x)
    with torch.autocast("cpu", torch.bfloat16):
        low = gradients(conv, x)
        with depthwise_in_float32(x):
            found = gradients(conv, x)
            assert conv(x).dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(found, whole if slow else low, strict=True))
    assert not torch.equal(low[2], whole[2])


def test_a_timm_backbone_does_so_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        "boltbox.detector.model.depthwise.is_slow",
        lambda *args: asked.append(is_slow(*args)) or asked[-1],
    )
    backbone = TimmBackbone("test_efficientnet", {k: 8 * k for k in range(1, 6)}, 3)
    images = torch.rand(2, 3, 64, 64)
    backbone(images)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        backbone(images)
    assert not asked
    with torch.autocast("cpu", torch.bfloat16):
        maps = backbone(images)
    assert any(asked)
    assert not all(asked)
    sum(y.float().mean() for y in maps.values()).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in backbone.parameters())
