"""A training step with the network cut in two halves and fed with micro-batches, beside one device:
pipeline.md.

    torchrun --nproc-per-node 2 -m benchmarks.pipeline --splits 1 2 4 8

Two processes: with two GPUs one on each (NCCL), otherwise each on half of the processor's cores
(gloo). Images and labels are random. A step is the forward and backward passes of a batch; nothing
is trained. Gradients are sums over images, so those of the micro-batches add up; batch norm and the
means of the loss see one micro-batch at a time, as in a training that accumulates `count` small
batches. Before anything is timed, the loss in halves must equal that of one device.
"""

import argparse
import copy
import os
from collections.abc import Callable
from functools import partial
from itertools import chain
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    SplitPoint,
    pipeline,
)

from benchmarks.tables import markdown
from boltbox.detector.commands.benchmark.stopwatch import now
from boltbox.detector.model.loss import DetectionLoss
from boltbox.detector.model.network import YOLOv5

CLASSES, LABELS = 80, 8  # of the network; an image
# all forward passes first; forward and backward in turns
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
Step = Callable[[], Tensor | None]  # gives the loss, where there is one


def micro_batches(images: Tensor, targets: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """(B, 3, H, W) and (N, 6) -> `count` pairs of equal size, with image indices from 0 in each."""
    parts, size = [], len(images) // count
    for start in range(0, len(images), size):
        mine = targets[(start <= targets[:, 0]) & (targets[:, 0] < start + size)].clone()
        mine[:, 0] -= start
        parts.append((images[start : start + size], mine))
    return parts


def cut(network: YOLOv5, at: str, images: Tensor) -> list[nn.Module]:
    """The halves before and from the layer `at` (a name of `network.layer_names()`); they share the
    network's tensors. Maps that skip the cut travel with those that end there. images: (b, 3, H,
    W), the shape of every micro-batch."""
    network.to(memory_format=torch.contiguous_format)  # as what crosses the cut must be
    shared = {id(t): t for t in chain(network.parameters(), network.buffers())}
    pipe = pipeline(
        copy.deepcopy(network, shared), (images,), split_spec={at: SplitPoint.BEGINNING}
    )
    return [pipe.get_stage_module(0), pipe.get_stage_module(1)]


def steps(options: argparse.Namespace, device: torch.device) -> dict[tuple[str, int], Step]:
    """This process's part of a step in each way, by its name and number of micro-batches."""
    rank, batch, side = dist.get_rank(), options.batch, options.image_size
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, side, side, generator=rng)
    classes = torch.randint(0, CLASSES, (batch * LABELS,), generator=rng)
    boxes = torch.rand(batch * LABELS, 4, generator=rng) * 0.5 + 0.25
    targets = torch.column_stack((torch.arange(batch).repeat_interleave(LABELS), classes, boxes))
    torch.manual_seed(0)
    network = YOLOv5(CLASSES, options.size)
    loss_of = DetectionLoss(CLASSES, network.strides).to(device)
    loss_of.set_image_size(side)
    head = copy.deepcopy(network.head).to(device)  # its anchors

    def loss(raw: list[Tensor], labels: Tensor) -> Tensor:
        return loss_of(list(raw), labels, head)[0]

    def one_device(count: int) -> Step:
        whole = copy.deepcopy(network).to(device)

        def step() -> Tensor:
            whole.zero_grad()
            total = torch.zeros((), device=device)
            for part, labels in micro_batches(images, targets, count):
                own = loss(whole(part.to(device)), labels.to(device))
                own.backward()
                total += own.detach()
            return total

        return step

    def halves(schedule: str, count: int) -> Step:
        first, second = cut(copy.deepcopy(network), options.at, images[: batch // count])
        crossing = copy.deepcopy(first).to("meta")(images[: batch // count].to("meta"))
        crossing = crossing if isinstance(crossing, tuple) else (crossing,)
        raw = copy.deepcopy(second).to("meta")(*crossing)
        half = (first, second)[rank].to(device)
        shapes = (images[: batch // count], crossing) if rank == 0 else (crossing, raw)
        stage = PipelineStage(half, rank, 2, device, *shapes)
        plan = SCHEDULES[schedule](stage, count, loss_fn=loss, scale_grads=False)

        def step() -> Tensor | None:
            half.zero_grad()
            parts = micro_batches(images, targets, count)
            if rank == 0:
                plan.step(arg_mbs=[(part.to(device),) for part, _ in parts])
                return None
            losses: list[Tensor] = []
            plan.step(
                target_mbs=[labels.to(device) for _, labels in parts],
                losses=losses,
                return_outputs=False,
            )
            return torch.stack(losses).sum().detach()

        return step

    ways: dict[tuple[str, int], Step] = {
        ("one device", count): one_device(count) for count in options.splits
    }
    for schedule in SCHEDULES:
        for count in options.splits:
            if count > 1 or schedule == "GPipe":  # with one micro-batch they are the same
                ways[f"two halves, {schedule}", count] = halves(schedule, count)
    for (name, count), step in ways.items():
        found = step()
        if name != "one device" and found is not None:
            torch.testing.assert_close(
                found, ways["one device", count](), msg=partial("{}, {}: {}".format, name, count)
            )
    if rank == 1:  # one process is enough for what needs one device
        ways |= {way: lambda: None for way in ways if way[0] == "one device"}
    return ways


def timed(step: Step, device: torch.device) -> float:
    """Seconds until both processes have done a step."""
    dist.barrier()
    begin = now(device)
    step()
    dist.barrier()
    return now(device) - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--splits",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8],
        help="numbers of micro-batches; each divides the batch",
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--image_size", type=int, default=320)
    parser.add_argument("--size", default="n")
    parser.add_argument(
        "--at", default="backbone.down.5", help="the layer where the second half begins"
    )
    parser.add_argument(
        "--repeats", type=int, default=15, help="steps of each way; the ways take turns"
    )
    options = parser.parse_args()
    gpus, rank = torch.cuda.device_count() >= 2, int(os.environ["RANK"])
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    dist.init_process_group("nccl" if gpus else "gloo")
    ways = steps(options, device)
    seconds: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way, step in ways.items():
            seconds[way].append(timed(step, device))
    dist.destroy_process_group()
    if rank:
        return
    middles = {way: median(taken) for way, taken in seconds.items()}
    whole = next(iter(middles.values()))
    cells = [["way", "micro-batches", "ms a step", "fastest", "images/s", "one device = 1"]]
    for (name, count), middle in middles.items():
        times = f"{middle * 1e3:.0f}", f"{min(seconds[name, count]) * 1e3:.0f}"
        cells.append(
            [name, str(count), *times, f"{options.batch / middle:.1f}", f"{whole / middle:.2f}"]
        )
    print("\n".join(markdown(cells)))


if __name__ == "__main__":
    main()
