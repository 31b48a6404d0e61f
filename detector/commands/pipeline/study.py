"""`python cli.py pipeline`: what a network in two halves gains from micro-batches, measured on this machine."""

import copy
import json
import os
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from tqdm import tqdm

from detector.checkpoint.runs import new_run
from detector.commands.benchmark.picture import draw_bars
from detector.commands.benchmark.stopwatch import timed
from detector.commands.benchmark.table import markdown
from detector.commands.pipeline.halves import Pipeline, ScheduleName, check_count, check_cut, cut, micro_batches
from detector.commands.pipeline.timing import Timing, cells, panels
from detector.data.transforms.letterbox import round_up
from detector.model.loss import DetectionLoss, scaled_gains
from detector.model.network import YOLOv5
from detector.system.atomic_file import write_atomically
from detector.system.errors import InputError
from detector.system.host import described, host
from detector.system.rank_zero import rank_zero_print

CLASSES, LABELS = 80, 8  # of the network; an image
WARM_UP = 1  # steps that are not counted: the processes connect


class Plan(NamedTuple):
    """What is measured; `counts` are numbers of micro-batches, `threads` the cores of a device that is no GPU."""

    size: str
    image_size: int
    batch: int
    counts: list[int]
    at: str
    repeats: int
    gpus: bool
    threads: int


def study(
    splits: str = "1,2,4,8",
    batch: int = 16,
    image_size: int = 320,
    size: str = "n",
    at: str = "backbone.down.5",
    repeats: int = 15,
    run: str | None = None,
) -> None:
    """Time of a training step with the network on one device, in two halves, and in two halves with micro-batches.

    Two processes: with two GPUs one on each (NCCL), otherwise each on half of the processor's cores (gloo). Images and labels
    are random. A step is the forward and backward passes of a batch. The run's folder gets pipeline.json and pipeline.png.

    Args:
        splits: Numbers of micro-batches, like 1,2,4,8; each divides the batch.
        batch: Images a step.
        image_size: Side of the images in pixels.
        size: Network size: n, s, m, l, x, n6, s6, m6, l6, x6, p2, p34, p6, p7.
        at: The layer where the second half begins, like backbone.down.5 or neck.lateral.4.
        repeats: Steps that are timed of each kind; kinds take turns.
        run: Folder of the run; default: runs/pipeline-NUMBER.
    """
    if batch < 1 or image_size < 1 or repeats < 1:
        raise InputError("batch, image_size and repeats must be at least 1")
    counts = parse_counts(splits)
    for count in counts:
        check_count(batch, count)
    network = YOLOv5(CLASSES, size)
    check_cut(network, at)
    gpus = torch.cuda.device_count() >= 2
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    plan = Plan(size, round_up(image_size, network.max_stride), batch, counts, at, repeats, gpus, threads)
    where, what = f"{described(host())}; {devices(plan)}", workload(plan)
    rank_zero_print(f"{where}; {what}")
    timings = start(plan)
    print("\n".join(["", *markdown(cells(timings, batch))]))
    folder = Path(run) if run else new_run("pipeline")
    content = {"machine": where, "plan": plan._asdict(), "timings": [t._asdict() for t in timings]}
    text = json.dumps(content, indent=1).encode()
    write_atomically(folder / "pipeline.json", lambda file: file.write(text))
    names = [f"{t.name}, {t.micro_batches} x {batch // t.micro_batches} images" for t in timings]
    draw = partial(draw_bars, names=names, panels=panels(timings, batch), title=f"{where}\n{what}")
    write_atomically(folder / "pipeline.png", draw)
    print(f"report: {folder / 'pipeline.png'}, pipeline.json")


def parse_counts(splits: str) -> list[int]:
    """`1,2,4` -> [1, 2, 4], in order; 1 is always among them, as the split without micro-batches."""
    words = splits.strip("[]").split(",")
    if not all(w.strip().isdecimal() for w in words):
        raise InputError(f"splits '{splits}': give numbers of micro-batches with commas between, like 1,2,4,8")
    return sorted({1, *map(int, words)})


def devices(plan: Plan) -> str:
    """What each half runs on, in words."""
    return "a GPU for each half, NCCL" if plan.gpus else f"{plan.threads} thread{'s' * (plan.threads > 1)} for each half, gloo"


def workload(plan: Plan) -> str:
    return f"YOLOv5{plan.size} cut at {plan.at}, {plan.batch} images of {plan.image_size} px, median of {plan.repeats} steps"


def start(plan: Plan) -> list[Timing]:
    """Measure in two processes; if one fails, the other ends too."""
    config = LaunchConfig(
        1, 1, 2, run_id="pipeline", rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0, local_addr="localhost"
    )
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    try:
        return elastic_launch(config, measure)(plan)[0]
    except SignalException as e:
        raise SystemExit(128 + e.sigval) from None
    finally:
        for number, handler in before.items():  # the launcher leaves its own
            signal.signal(number, handler)


def measure(plan: Plan) -> list[Timing]:
    """One of the two processes, from beginning to end."""
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank) if plan.gpus else torch.device("cpu")
    if plan.gpus:
        torch.cuda.set_device(device)
    torch.set_num_threads(plan.threads)
    dist.init_process_group("nccl" if plan.gpus else "gloo")
    ways = steps(plan, device)
    seconds: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for _ in tqdm(range(WARM_UP + plan.repeats), desc="measuring", disable=rank > 0, leave=False):
        for way, step in ways.items():  # in turns, so that a busy minute falls on all of them
            seconds[way].append(timed(step, device))
    dist.destroy_process_group()
    return [Timing(how, count, taken[WARM_UP:]) for (how, count), taken in seconds.items()]


def steps(plan: Plan, device: torch.device) -> dict[tuple[str, int], Callable[[], object]]:
    """This process's part of a step in each way: on one device, then in halves, by schedule and number of micro-batches."""
    mesh = init_device_mesh(device.type, (1, 2), mesh_dim_names=("dp", "pp"))
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(plan.batch, 3, plan.image_size, plan.image_size, generator=rng)
    rows = plan.batch * LABELS
    classes = torch.randint(0, CLASSES, (rows,), generator=rng)
    boxes = torch.rand(rows, 4, generator=rng) * 0.5 + 0.25
    targets = torch.column_stack((torch.arange(plan.batch).repeat_interleave(LABELS), classes, boxes))

    def network_and_loss() -> tuple[YOLOv5, Callable[[list[Tensor], Tensor], Tensor]]:
        torch.manual_seed(0)
        network = YOLOv5(CLASSES, plan.size)
        gains = scaled_gains(0.05, 1.0, 0.5, len(network.levels), CLASSES, plan.image_size)
        loss = DetectionLoss(CLASSES, network.strides, None, *gains).to(device)
        head = copy.deepcopy(network.head).to(device)  # its anchors
        return network, lambda raw, labels: loss(raw, labels, head)[0]

    def on_one_device(count: int) -> Callable[[], object]:
        if mesh.get_local_rank("pp"):
            return lambda: None
        network, loss = network_and_loss()
        network.to(device)

        def step() -> None:
            network.zero_grad()
            for part, labels in micro_batches(images, targets, count):
                loss(network(part.to(device)), labels.to(device)).backward()

        return step

    @cache
    def network_in_halves(count: int) -> tuple[YOLOv5, tuple[nn.Module, nn.Module]]:
        network, _ = network_and_loss()
        return network, cut(network, plan.at, images[: plan.batch // count])

    def in_halves(count: int, schedule: ScheduleName) -> Callable[[], object]:
        (network, halves), (_, loss) = network_in_halves(count), network_and_loss()
        pipeline = Pipeline(halves, loss, images[: plan.batch // count], count, mesh, device, schedule)

        def step() -> None:
            network.zero_grad()
            pipeline.step(images, targets)

        return step

    several = [c for c in plan.counts if c > 1]
    return {
        **{("one device", c): on_one_device(c) for c in plan.counts},
        **{("gpipe", c): in_halves(c, "gpipe") for c in plan.counts},
        **{("1f1b", c): in_halves(c, "1f1b") for c in several},
    }
