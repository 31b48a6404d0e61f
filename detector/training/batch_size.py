"""The batch size that data.batch_size leaves open; and how long a step takes, on made-up images."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch

from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.schedule import BATCH_SIZES, default_batch_size

SHARE = 0.8  # of the free memory: the average of the weights and validations need some too
OBJECTS = 32  # per image


def choose_batch_size(detector: Any, image_size: int, images: int, fill: bool) -> int:
    """The batch size that suits the length of the run, or that the first device has memory for. A
    method of Detector.

    Args:
        detector: Copies of its network and loss are moved to the device and tried.
        image_size: Longer side of the images in pixels.
        images: Samples of an epoch; a batch has no more.
        fill: As many images as a GPU has memory for.

    Returns:
        Images per batch, over all devices.
    """
    trainer = detector.trainer
    world = trainer.world_size
    seen = images * (trainer.max_epochs or 0)  # Warmup refuses None
    suitable = math.ceil(default_batch_size(seen) / world) * world
    if not fill:
        if suitable < BATCH_SIZES[0]:
            print_fact("batch", f"data.batch_size {suitable}, as the run has {seen} images")
        return suitable
    images_per_device = 0
    with limited_memory(trainer.strategy.root_device) as is_gpu:
        if is_gpu and trainer.is_global_zero:
            largest = image_size * 3 // 2 if detector.options.multi_scale else image_size
            step = _step_function(trainer, detector, largest)
            images_per_device = 1  # the largest power of two for which there is memory
            with contextlib.suppress(torch.OutOfMemoryError):
                while 2 * images_per_device <= images // world:
                    step(2 * images_per_device)
                    images_per_device *= 2
    if is_gpu:
        reason = "what fits the GPU's memory"
        batch_size = trainer.strategy.broadcast(images_per_device) * world
    else:
        reason = "without a GPU"
        batch_size = suitable
    print_fact("batch", f"data.batch_size {batch_size} (auto: {reason})")
    return batch_size


@contextlib.contextmanager
def limited_memory(device: torch.device) -> Iterator[bool]:
    """Whether the device is a GPU, of whose free memory torch uses no more than SHARE. Afterwards
    the random generators are as before."""
    if device.type != "cuda":
        yield False
        return
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(SHARE * free / total, device)
    try:
        with torch.random.fork_rng([device]):
            yield True
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


def step_seconds(trainer: L.Trainer, detector: Any, side: int, images: int) -> float:
    """How long a training step takes, without loading its images.

    Args:
        trainer: Of the training.
        detector: The Detector: copies of its network and loss are tried.
        side: Of the images, in pixels.
        images: Per step.
    """
    with limited_memory(trainer.strategy.root_device) as is_gpu:
        step = _step_function(trainer, detector, side)
        step(images)  # the first one takes longer
        start = time.perf_counter()
        step(images)
        if is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start


def _step_function(trainer: L.Trainer, detector: Any, side: int) -> Callable[[int], None]:
    """A function that takes a training step of so many images, at a learning rate of 0, with copies
    of network and loss."""
    precision = trainer.precision_plugin
    device = trainer.strategy.root_device
    network = copy.deepcopy(detector.network).to(device)
    loss = copy.deepcopy(detector.loss).to(device)
    precision.convert_module(network).train()
    optimizer = detector.options.optim.build(network, 1)
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    def step(images: int) -> None:
        targets = torch.tensor([[0, 0, 0.5, 0.5, 0.25, 0.25]]).repeat(images * OBJECTS, 1)
        targets[:, 0] = torch.arange(images).repeat_interleave(OBJECTS)
        with precision.forward_context():
            raw = network(torch.zeros(images, 3, side, side, device=device))
            total, _ = loss(raw, targets.to(device), network.head)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
