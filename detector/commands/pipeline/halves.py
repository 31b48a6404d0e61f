"""A network cut in two, each half on a device of its own, fed with micro-batches.

torch.distributed.pipelining cuts the network, carries the maps that cross the cut, and runs the schedule. Gradients are sums
over images, as everywhere here, so those of the micro-batches add up and nothing is scaled. What a batch has of its own, each
micro-batch has of its own: the statistics of batch norm, and the means over targets in the loss. A pipeline of `count`
micro-batches thus equals the whole network that collects the gradients of `count` small batches.
"""

import copy
from collections.abc import Callable
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline
from torch.nn.parallel import DistributedDataParallel

from detector.model.network import YOLOv5
from detector.system.errors import InputError, nearest

ScheduleName = Literal["gpipe", "1f1b"]
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def check_cut(network: YOLOv5, at: str) -> None:
    """InputError unless the network can be cut before the layer `at`."""
    layers = list(network.layer_names().values())[1:]
    if at not in layers:
        raise InputError(f"the network cannot be cut at '{at}'; {nearest(at, layers)}")


def check_count(batch: int, count: int) -> None:
    """InputError unless a batch of so many images divides into `count` micro-batches; it names the numbers that do."""
    if count < 1 or batch % count:
        fitting = [n for n in range(1, batch + 1) if batch % n == 0]
        near = sorted(sorted(fitting, key=lambda n: abs(n - count))[:2])
        raise InputError(
            f"a batch of {batch} images cannot be divided into {count} micro-batches; the nearest numbers that do are "
            f"{' and '.join(map(str, near))}"
        )


def micro_batches(images: Tensor, targets: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """Divide a batch into `count` of equal size.

    Args:
        images: (B, 3, H, W).
        targets: (N, 6) image index, class, cx, cy, w, h; N may be 0.

    Returns:
        `count` pairs of images (B / count, 3, H, W) and their targets (n, 6), with image indices from 0 in each.

    Raises:
        InputError: B is not a multiple of `count`.
    """
    check_count(len(images), count)
    size = len(images) // count
    parts = []
    for start in range(0, len(images), size):
        index = targets[:, 0]
        mine = targets[(start <= index) & (index < start + size)].clone()
        mine[:, 0] -= start
        parts.append((images[start : start + size], mine))
    return parts


def cut(network: YOLOv5, at: str, images: Tensor) -> tuple[nn.Module, nn.Module]:
    """Cut the network before a layer; the maps that skip the cut travel with those that end there.

    Args:
        network: stays whole and usable; the halves hold its own parameters and buffers, by their names. It is cut as it runs
            now: for training or for evaluation. Its weights are made contiguous (no channels_last), since what crosses the cut
            must be; that changes no number by more than rounding.
        at: where the second half begins, a name of `network.layer_names()`.
        images: (b, 3, H, W), the shape of every micro-batch.

    Raises:
        InputError: there is no such layer, or nothing before it.
    """
    check_cut(network, at)
    network.to(memory_format=torch.contiguous_format)
    # torch marks the cut on the module that it is given, for good. So it is given a copy that shares the tensors.
    shared = {id(t): t for t in chain(network.parameters(), network.buffers())}
    twin = copy.deepcopy(network, shared)
    pipe = pipeline(twin, (images.contiguous(),), split_spec={at: SplitPoint.BEGINNING})
    return pipe.get_stage_module(0), pipe.get_stage_module(1)


def shapes(first: nn.Module, second: nn.Module, images: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Tensors without content: the maps that cross the cut, and the raw outputs, for images (b, 3, H, W)."""
    crossing = copy.deepcopy(first).to("meta")(images.to("meta"))
    crossing = crossing if isinstance(crossing, tuple) else (crossing,)
    return crossing, copy.deepcopy(second).to("meta")(*crossing)


class Pipeline:
    """This rank's half of a network, in a mesh of data x pipeline parallelism.

    Args:
        halves: of `cut`; every rank has the same on its CPU, and only the rank's half moves to the device.
        loss: raw maps of a micro-batch, its targets (n, 6) -> scalar, a sum over images.
        images: (b, 3, H, W), the shape of every micro-batch.
        count: micro-batches a batch; 1f1b needs at least 2.
        mesh: dimensions `dp`, any number of replicas, and `pp`, 2.
        device: that of this rank's half.
        schedule: gpipe, all forward passes before the first backward; 1f1b, in turns, so that at most two micro-batches wait
            for their backward pass.

    Raises:
        InputError: too few micro-batches.
    """

    def __init__(
        self,
        halves: tuple[nn.Module, nn.Module],
        loss: Callable[[list[Tensor], Tensor], Tensor],
        images: Tensor,
        count: int,
        mesh: DeviceMesh,
        device: torch.device,
        schedule: ScheduleName = "gpipe",
    ) -> None:
        if schedule == "1f1b" and count < 2:
            raise InputError("schedule 1f1b needs at least 2 micro-batches; give more, or take gpipe")
        index, replicas = mesh.get_local_rank("pp"), mesh["dp"].size()
        images = images.contiguous()
        crossing, raw = shapes(*halves, images)
        self.half = halves[index].to(device)
        module: nn.Module = self.half
        if replicas > 1 and any(p.requires_grad for p in module.parameters()):
            # Each replica keeps its own running statistics; those of the first are the ones to save, as without a pipeline.
            module = DistributedDataParallel(module, process_group=mesh.get_group("dp"), broadcast_buffers=False)
        inputs, outputs = (images, crossing) if index == 0 else (crossing, raw)
        stage = PipelineStage(module, index, 2, device, inputs, outputs, group=mesh.get_group("pp"))

        def scaled_loss(raw: tuple[Tensor, ...], targets: Tensor) -> Tensor:
            return loss(list(raw), targets) * replicas  # DistributedDataParallel takes the mean over replicas

        self.count = count
        self.device = device
        self.is_first = index == 0
        self.replicas = replicas
        self.schedule = SCHEDULES[schedule](stage, count, loss_fn=scaled_loss, scale_grads=False)

    def step(self, images: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward passes of a batch; gradients are added to those of this half, summed over replicas.

        Args:
            images: (B, 3, H, W), this replica's share of the batch, B = count * b.
            targets: (N, 6) of these images.

        Returns:
            Where the network ends, this replica's loss, a scalar: the sum over micro-batches. None on the other rank.
        """
        parts = micro_batches(images, targets, self.count)
        if self.is_first:
            self.schedule.step(arg_mbs=[(i.to(self.device).contiguous(),) for i, _ in parts])
            return None
        losses: list[Tensor] = []
        self.schedule.step(target_mbs=[t.to(self.device) for _, t in parts], losses=losses, return_outputs=False)
        return torch.stack(losses).sum().detach() / self.replicas
