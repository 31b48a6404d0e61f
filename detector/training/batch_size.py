"""`data.batch_size auto`: the largest batch that trains in a GPU's memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import lightning as L
import torch

from boltbox.detector.model.loss import Loss
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.rank_zero import print_fact
from boltbox.detector.training.optimizer import OptimOptions

SHARE = 0.8  # of the free memory: the average of the weights and validations take some too
OBJECTS = 32  # an image
WITHOUT_GPU = 16  # images: nothing tells when a processor's memory is full


def choose_batch_size(
    trainer: L.Trainer, network: YOLOv5, loss: Loss, optim: OptimOptions, side: int, images: int
) -> int:
    """Images a batch, over all devices: as many as the first one has room for, on each.

    Args:
        network, loss: copies of them are moved to the device and tried.
        side: of the largest images, in pixels.
        images: of the data; a batch has no more.
    """
    world, found = trainer.world_size, 0
    with limited_memory(trainer.strategy.root_device) as is_gpu:
        if is_gpu and trainer.is_global_zero:
            parts = copy.deepcopy((network, loss))
            found = _largest_batch(trainer, *parts, optim, side, images // world)
    each = trainer.strategy.broadcast(found) or -(-WITHOUT_GPU // world)
    reason = "what fits the GPU's memory" if is_gpu else "without a GPU"
    print_fact("batch", f"data.batch_size {each * world} (auto: {reason})")
    return each * world


@contextmanager
def limited_memory(device: torch.device) -> Iterator[bool]:
    """Whether the device is a GPU, within whose free memory torch takes no more than SHARE; its
    random generator and the processor's are as before afterwards."""
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


def _largest_batch(
    trainer: L.Trainer, network: YOLOv5, loss: Loss, optim: OptimOptions, side: int, most: int
) -> int:
    """The largest power of two, up to `most`, with which the network can take a step."""
    precision, device = trainer.precision_plugin, trainer.strategy.root_device
    precision.convert_module(network.to(device)).train()
    loss.to(device)
    optimizer = optim.build(network, 1)
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    def fits(images: int) -> bool:
        targets = torch.tensor([[0, 0, 0.5, 0.5, 0.25, 0.25]]).repeat(images * OBJECTS, 1)
        targets[:, 0] = torch.arange(images).repeat_interleave(OBJECTS)
        try:
            with precision.forward_context():
                raw = network(torch.zeros(images, 3, side, side, device=device))
                total, _ = loss(raw, targets.to(device), network.head)
            total.backward()
            optimizer.step()
        except torch.OutOfMemoryError:
            return False
        optimizer.zero_grad()
        return True

    images = 1
    while 2 * images <= most and fits(2 * images):
        images *= 2
    return images
