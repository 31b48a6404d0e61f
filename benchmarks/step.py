"""A training step in several ways, turn about: precision, and compilation by block or as a whole.

    python -m benchmarks.step --size n --image_size 320

Forward, loss, backward, step of the optimizer, on random images with five boxes each. A ratio is
that of two steps of a round; the table has the median. The first step of a compiled network is that
of an empty compiler's cache.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

import torch

from boltbox.detector.model.network_options import NetworkOptions
from boltbox.detector.training.compilation import compile_blocks
from boltbox.detector.training.module import Detector
from boltbox.detector.training.optimizer import OptimizerName, OptimOptions

WAYS = [
    (precision, way)
    for precision in ("32-true", "bf16-mixed")
    for way in ("eager", "blocks compiled", "whole compiled")
]


def step_of(
    precision: str,
    way: str,
    size: str,
    image_size: int,
    batch_size: int,
    optimizer_name: OptimizerName = "SGD",
    backbone: str = "yolov5",
) -> Callable[[], None]:
    """A function that makes one training step."""
    torch.manual_seed(0)
    detector = Detector(
        ["a", "b", "c"],
        network=NetworkOptions(size, backbone),
    ).train()
    detector.set_image_size(image_size)
    detector.batch_size = batch_size
    network, head = detector.network, detector.network.head
    images = torch.rand(batch_size, 3, image_size, image_size).contiguous(
        memory_format=torch.channels_last
    )
    boxes = torch.rand(5 * batch_size, 4) * torch.tensor([1, 1, 0.2, 0.2])
    targets = torch.cat(
        (
            torch.arange(5 * batch_size)[:, None] % batch_size,
            torch.randint(3, (5 * batch_size, 1)),
            boxes,
        ),
        1,
    )
    options = OptimOptions(optimizer_name, 1e-4, momentum=0.9, weight_decay=0.0)
    optimizer = options.build(network, batch_size)
    forward: Callable[[torch.Tensor], list[torch.Tensor]] = network
    if way == "blocks compiled":
        compile_blocks(network)
    elif way == "whole compiled":
        forward = torch.compile(network, dynamic=False)

    def step() -> None:
        low = (
            torch.autocast("cpu", torch.bfloat16)
            if precision == "bf16-mixed"
            else contextlib.nullcontext()
        )
        with low:
            loss, _ = detector.loss(forward(images), targets, head)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def turn_about(steps: Sequence[Callable[[], None]], rounds: int) -> list[tuple[float, float]]:
    """Of each step the medians over rounds of its milliseconds, and of its ratio to the first one's
    in the same round."""
    found = [[seconds(step) for step in steps] for _ in range(rounds)]
    medians = statistics.median
    return [
        (1000 * medians(row[k] for row in found), medians(row[k] / row[0] for row in found))
        for k in range(len(steps))
    ]


def arguments(description: str | None) -> argparse.Namespace:
    """What is stepped, and how often."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="n")
    parser.add_argument("--image_size", type=int, default=320)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def main() -> None:
    given = arguments(__doc__)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        steps = [step_of(*way, given.size, given.image_size, given.batch_size) for way in WAYS]
        first = [seconds(step) for step in steps]
        found = turn_about(steps, given.rounds)
    print("| precision | | first step, s | a step, ms | ratio |\n|---|---|---|---|---|")
    for (precision, way), start, (milliseconds, ratio) in zip(WAYS, first, found, strict=True):
        print(f"| {precision} | {way} | {start:.1f} | {milliseconds:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
