"""Training batch norm on a CPU: torch's two kernels and `boltbox.detector.model.batch_norm`, in
exactness and in time.

    python -m benchmarks.batch_norm

Exactness is against float64. Time is that of whole training steps (forward, loss, backward) of a
YOLOv5n at 320 px, 8 images a batch; the ways take turns, in another order each round, and each is
told by its fastest step and by its median.
"""

import copy
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from boltbox.detector.model.batch_norm import BatchNorm2d
from boltbox.detector.model.loss import DetectionLoss
from boltbox.detector.model.network import YOLOv5

BATCH, SIDE, CLASSES, ROUNDS = 8, 320, 3, 15
SHAPES = ((16, 16, 160, 160), (16, 32, 80, 80), (16, 128, 20, 20))
WAYS = {
    "contiguous": (nn.BatchNorm2d, torch.contiguous_format),
    "channels-last, torch's": (nn.BatchNorm2d, torch.channels_last),
    "channels-last, ours": (BatchNorm2d, torch.channels_last),
}


def errors(
    shape: tuple[int, ...], kind: type[nn.BatchNorm2d], memory: torch.memory_format
) -> tuple[float, float, float]:
    """Largest errors of output, running variance and gradient of the input; values have mean 3 and
    variance 1."""
    generator = torch.Generator().manual_seed(0)
    values, gradient = (
        torch.randn(shape, generator=generator) + 3,
        torch.randn(shape, generator=generator),
    )

    def seen(norm: nn.BatchNorm2d, dtype: torch.dtype, memory: torch.memory_format) -> list[Tensor]:
        x = values.to(dtype).clone(memory_format=memory).requires_grad_()
        y = norm.to(dtype)(x)
        y.backward(gradient.to(dtype).contiguous(memory_format=memory))
        assert x.grad is not None
        assert norm.running_var is not None
        return [t.detach().double() for t in (y, norm.running_var, x.grad)]

    exact = seen(nn.BatchNorm2d(shape[1], momentum=1.0), torch.float64, torch.contiguous_format)
    ours = seen(kind(shape[1], momentum=1.0), torch.float32, memory)
    output, variance, back = (float((a - b).abs().max()) for a, b in zip(ours, exact, strict=True))
    return output, variance, back


def step(kind: type[nn.BatchNorm2d], memory: torch.memory_format) -> Callable[[], None]:
    """One training step without the optimizer's."""
    torch.manual_seed(0)
    network = YOLOv5(CLASSES, "n").train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = kind  # the same attributes; only `forward` differs
    network = copy.deepcopy(network).to(memory_format=memory)  # type: ignore[call-overload]
    loss = DetectionLoss(CLASSES, network.strides)
    loss.set_image_size(SIDE)
    images = torch.rand(BATCH, 3, SIDE, SIDE)
    boxes = torch.rand(10 * BATCH, 4) * 0.4 + 0.2
    numbers = torch.arange(10.0 * BATCH)
    targets = torch.cat((torch.stack((numbers % BATCH, numbers % CLASSES), 1), boxes), 1)

    def run() -> None:
        network.zero_grad()
        loss(network(images), targets, network.head)[0].backward()

    return run


def main() -> None:
    print("| batch | way | output | variance | gradient |\n|---|---|---|---|---|")
    for shape in SHAPES:
        for way, (kind, memory) in WAYS.items():
            print(
                f"| {' x '.join(map(str, shape))} | {way} | "
                + " | ".join(f"{e:.1e}" for e in errors(shape, kind, memory))
                + " |"
            )
    steps = {way: step(kind, memory) for way, (kind, memory) in WAYS.items()}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(ROUNDS + 1):
        for way in random.Random(turn).sample(list(WAYS), len(WAYS)):
            start = time.perf_counter()
            steps[way]()
            if turn:  # the first round warms up
                times[way].append(time.perf_counter() - start)
    base = times["channels-last, torch's"]
    print("\n| way | fastest step, s | ratio | median, s | ratio |\n|---|---|---|---|---|")
    for way, each in times.items():
        fastest, median = min(each), statistics.median(each)
        ratios = fastest / min(base), median / statistics.median(base)
        print(f"| {way} | {fastest:.3f} | {ratios[0]:.2f} | {median:.3f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
