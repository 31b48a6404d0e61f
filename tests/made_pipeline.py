"""One rank of a pipeline: runs CASES and saves what came out."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from detector.commands.pipeline.halves import Pipeline, ScheduleName, cut
from detector.model.loss import DetectionLoss, scaled_gains
from detector.model.network import YOLOv5
from detector.training.optimizer import build_optimizer

STEPS, LR = 2, 0.01


class Case(NamedTuple):
    at: str
    count: int  # micro-batches of a replica
    schedule: ScheduleName
    train: bool = True  # batch norm with the statistics of the micro-batch, or with the running ones
    frozen: bool = False  # the backbone


CASES = {  # by number of ranks
    2: [
        Case("backbone.down.5", 1, "gpipe"),
        Case("backbone.down.5", 4, "1f1b"),
        Case("neck.top_down.3", 2, "gpipe", frozen=True),
    ],
    4: [Case("backbone.down.5", 2, "gpipe"), Case("neck.lateral.4", 2, "1f1b", train=False, frozen=True)],
}


def network_and_loss(case: Case) -> tuple[YOLOv5, DetectionLoss]:
    torch.manual_seed(0)
    network = YOLOv5(3, width_multiple=0.125, depth_multiple=0.1).train(case.train)
    network.to(memory_format=torch.channels_last)  # as Detector's
    network.backbone.requires_grad_(not case.frozen)
    return network, DetectionLoss(3, network.strides, None, *scaled_gains(0.05, 1.0, 0.5, 3, 3, 64))


def batch(images: int) -> tuple[Tensor, Tensor]:
    """Random images with 0, 1, 2, ... labels, so that a micro-batch of one image can be without."""
    rng = torch.Generator().manual_seed(1)
    index = torch.arange(images).repeat_interleave(torch.arange(images)).float()
    boxes = torch.rand(len(index), 4, generator=rng) * 0.4 + 0.3
    classes = torch.randint(0, 3, (len(index),), generator=rng)
    pixels = torch.rand(images, 3, 64, 64, generator=rng).to(memory_format=torch.channels_last)
    return pixels, torch.column_stack((index, classes, boxes))


def share(images: Tensor, targets: Tensor, replica: int, replicas: int) -> tuple[Tensor, Tensor]:
    """A replica's part of a batch."""
    size = len(images) // replicas
    mine = targets[(targets[:, 0] // size) == replica] - torch.tensor([replica * size, 0, 0, 0, 0, 0])
    return images[replica * size : (replica + 1) * size], mine


def cut_networks(ranks: int) -> list[tuple[YOLOv5, tuple[nn.Module, nn.Module]]]:
    """For each case the network and its halves. It takes seconds, so the ranks inherit it when they are forked."""
    networks = [network_and_loss(case)[0] for case in CASES[ranks]]
    return [(n, cut(n, c.at, batch(4)[0][: 4 // c.count])) for n, c in zip(networks, CASES[ranks], strict=True)]


def run(case: Case, network: YOLOv5, halves: tuple[nn.Module, nn.Module], replicas: int) -> dict[str, Any]:
    """Loss, gradients and statistics of a step, then the weights of this half after STEPS optimizer steps."""
    loss = network_and_loss(case)[1]
    mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("dp", "pp"))
    images, targets = share(*batch(4 * replicas), mesh.get_local_rank("dp"), replicas)
    half = Pipeline(
        halves,
        lambda raw, rows: loss(raw, rows, network.head)[0],
        images[: len(images) // case.count],
        case.count,
        mesh,
        torch.device("cpu"),
        case.schedule,
    )
    told: dict[str, Any] = {"loss": half.step(images, targets)}
    told["gradients"] = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    told["statistics"] = {n: network.get_buffer(n).clone() for n, b in half.half.named_buffers()}
    optimizer = build_optimizer(network, "SGD", LR, 0.9, 0.0005)
    for _ in range(STEPS):
        optimizer.step()
        optimizer.zero_grad()
        half.step(images, targets)
    told["weights"] = {n: network.get_parameter(n).detach() for n in told["gradients"]}
    return told


def main(folder: Path, networks: list[tuple[YOLOv5, tuple[nn.Module, nn.Module]]]) -> None:
    """What each case tells, in a file of this rank."""
    dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]))
    replicas = dist.get_world_size() // 2
    cases = zip(CASES[dist.get_world_size()], networks, strict=True)
    results = [run(case, *network, replicas) for case, network in cases]
    torch.save(results, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()
