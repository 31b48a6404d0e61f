"""Training batch norm in channels-last memory on a CPU, against float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from boltbox.detector.model.batch_norm import BatchNorm2d
from boltbox.detector.model.layers import Conv
from boltbox.detector.model.network_options import NetworkOptions
from boltbox.detector.training.module import Detector

CHANNELS_LAST = torch.channels_last


def learned(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """With weights, biases and running statistics that are not all alike."""
    generator = torch.Generator().manual_seed(3)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert tensor is not None
        tensor.data = torch.rand(tensor.shape, generator=generator) + 0.5
    return norm


def pass_through(norm: nn.BatchNorm2d, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """All that a forward and a backward pass leave, in float64."""
    x = x.detach().clone().requires_grad_()
    y = norm(x)
    y.backward(gradient)
    grads = {"x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return {
        "y": y.detach().double(),
        **{k: v.double() for k, v in grads.items()},
        **dict(norm.double().named_buffers()),
    }


@pytest.mark.parametrize(
    "shape", [(8, 16, 160, 160), (3, 24, 20, 12), (2, 5, 13, 11), (1, 300, 7, 7), (2, 4, 1, 1)]
)
def test_exact_in_channels_last(shape: tuple[int, ...]) -> None:
    """torch's own is off by 2e-4 in the first shape."""
    generator = torch.Generator().manual_seed(0)
    x, gradient = (
        torch.randn(shape, generator=generator) + 3,
        torch.randn(shape, generator=generator) + 0.1,
    )
    options: dict[str, Any] = {"eps": 1e-3, "momentum": 0.03}
    exact = pass_through(
        learned(nn.BatchNorm2d(shape[1], **options)).double(), x.double(), gradient.double()
    )
    last = {"memory_format": CHANNELS_LAST}
    ours = pass_through(
        learned(BatchNorm2d(shape[1], **options)), x.contiguous(**last), gradient.contiguous(**last)
    )
    assert ours.pop("num_batches_tracked") == exact.pop("num_batches_tracked") == 1
    for name, value in exact.items():
        # the former are sums over the batch
        bar = 3e-5 * value.abs().max() if name in ("weight", "bias") else 8e-6
        assert float((ours[name] - value).abs().max()) < bar, name


def test_gradient_by_differences() -> None:
    """The backward pass is that of the forward pass: float32 differences of a smooth function of
    x."""
    generator = torch.Generator().manual_seed(1)
    x = (
        torch.randn(2, 3, 5, 4, generator=generator)
        .contiguous(memory_format=CHANNELS_LAST)
        .requires_grad_()
    )
    weights = torch.randn(x.shape, generator=generator)
    norm = learned(BatchNorm2d(3))

    def value(x: Tensor) -> Tensor:
        return (norm(x).double().sin() * weights).sum()

    (gradient,) = torch.autograd.grad(value(x), x)
    for direction in torch.randn(3, *x.shape, generator=generator):
        difference = (
            value((x + 1e-2 * direction).detach()) - value((x - 1e-2 * direction).detach())
        ) / 2e-2
        torch.testing.assert_close(
            difference.detach(), (gradient * direction).sum().double(), rtol=5e-3, atol=5e-3
        )


@pytest.mark.parametrize("case", ["evaluation", "contiguous", "bfloat16"])
def test_elsewhere_it_is_torchs(case: str) -> None:
    x = torch.randn(4, 6, 10, 8, generator=torch.Generator().manual_seed(2))
    x = x if case == "contiguous" else x.contiguous(memory_format=CHANNELS_LAST)
    x = x.bfloat16() if case == "bfloat16" else x
    ours, theirs = (
        learned(kind(6)).train(case != "evaluation") for kind in (BatchNorm2d, nn.BatchNorm2d)
    )
    assert torch.equal(ours(x), theirs(x))
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True))


def test_the_cumulative_average() -> None:
    """Momentum None, as stochastic weight averaging sets it."""
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (learned(kind(6, momentum=None)) for kind in (BatchNorm2d, nn.BatchNorm2d))
    for _ in range(3):
        x = torch.randn(4, 6, 10, 8, generator=generator).contiguous(memory_format=CHANNELS_LAST)
        torch.testing.assert_close(ours(x), theirs(x))
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_one_value_a_channel() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        BatchNorm2d(3)(torch.ones(1, 3, 1, 1).contiguous(memory_format=CHANNELS_LAST))


def test_the_detector_has_it() -> None:
    detector = Detector(["a"], network=NetworkOptions(width_multiple=0.125))
    seen = []
    for module in detector.network.modules():
        if isinstance(module, Conv):
            module.bn.register_forward_hook(
                lambda norm, x, y: seen.append((type(norm), type(y.grad_fn).__name__))
            )
    detector.network.train()(torch.rand(2, 3, 64, 64))
    assert len(seen) > 50
    assert set(seen) == {(BatchNorm2d, "_NormaliseBackward")}
