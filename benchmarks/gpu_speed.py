"""How fast one GPU trains, as one table in less than ten minutes, beside what torchvision's own
detectors do.

    python -m benchmarks.gpu_speed --data ../shared/data/bccd/BCCD --page benchmarks/gpu_speed.md
    python -m benchmarks.gpu_speed --data demo --image-size 64 --batch-size 8 --seconds 0.5 --size n
    --yardsticks \\
        --trainer.accelerator cpu --model.network.width_multiple 0.125

Rows are trainings in processes of their own (`cli.py benchmark` measures in the same way); options
that are not known go to `cli.py fit`. Then one training of two epochs tells what an epoch costs
with its validation, and one is killed and resumed: the scale of 16-mixed must go on where it was.
The second line is a dry run without a GPU.
"""

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torchvision.models import detection

from benchmarks.resume_fuzz import command, difference, start
from benchmarks.speed import PROFILER, parts, profile, timed
from benchmarks.tables import markdown
from boltbox.detector.commands.benchmark.command import measure
from boltbox.detector.data.demo import make_demo
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.host import described, host

ROOT = Path(__file__).parents[1]
FIT = [sys.executable, str(ROOT / "cli.py"), "fit"]
ROWS = {
    "float32": {"trainer.precision": "32-true"},
    "16-mixed": {"trainer.precision": "16-mixed"},
    "bf16-mixed": {"trainer.precision": "bf16-mixed"},
    "16-mixed, compiled": {"trainer.precision": "16-mixed", "model.compile": "true"},
    "bf16-mixed, compiled": {"trainer.precision": "bf16-mixed", "model.compile": "true"},
    "16-mixed, DDP with one process": {
        "trainer.precision": "16-mixed",
        "trainer.strategy": "ddp",
        "trainer.devices": "1",
    },
}
YARDSTICKS: dict[str, Callable[..., torch.nn.Module]] = {
    "torchvision's SSDlite320, MobileNetV3": detection.ssdlite320_mobilenet_v3_large,
    "torchvision's RetinaNet, ResNet-50 FPN": detection.retinanet_resnet50_fpn,
}


def training(name: str, options: list[str], seconds: float) -> list[str]:
    """Cells of a row."""
    own = [x for key, value in ROWS[name].items() for x in (f"--{key}", value)]
    trial = measure([*FIT, *options, *own], seconds, 240)
    if trial.error:
        return [name, trial.error, "-", "-", "-"]
    gpu = trial.measured["gpu_memory"]
    return [
        name,
        f"{trial.rate:.4g}",
        f"{trial.measured['waiting']:.0%}",
        f"{gpu / 2**30:.2f}" if gpu else "-",
    ]


def yardstick(
    name: str, batch_size: int, size: int, seconds: float, device: torch.device
) -> list[str]:
    """Cells of a row: forward, backward and step on the same random images again and again, without
    any loader."""
    torch.manual_seed(0)
    model = YARDSTICKS[name](weights=None, weights_backbone=None, num_classes=4).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    scaler = torch.amp.GradScaler(device.type)
    images = list(torch.rand(batch_size, 3, size, size, device=device))
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.8]], device=device) * size
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2], device=device)}] * batch_size

    def step() -> None:
        with torch.autocast(
            device.type, torch.float16 if device.type == "cuda" else torch.bfloat16
        ):
            loss = sum(model(images, targets).values())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(3):
        step()
    steps = 0
    began = wait()
    while wait() - began < seconds:
        step()
        steps += 1
    rate = steps * batch_size / (wait() - began)
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if device.type == "cuda" else "-"
    return [name, f"{rate:.4g}", "no loader", memory]


def epoch(options: list[str]) -> list[str]:
    """Sentences on a training of two epochs."""
    with tempfile.TemporaryDirectory() as folder:
        more = [
            "--trainer.max_epochs",
            "2",
            "--report.enabled",
            "false",
            "--trainer.enable_progress_bar",
            "false",
        ]
        more += [
            "--trainer.profiler",
            PROFILER,
            "--trainer.profiler.dirpath",
            folder,
            "--trainer.profiler.filename",
            "profile",
        ]
        seconds, _ = timed(
            [*FIT, *options, *more, "--run", f"{folder}/run"], Path(folder), dict(os.environ)
        )
        found = parts(profile(Path(folder, "fit-profile.txt")))
    return [
        f"- Two epochs by the command line: {seconds:.3g} s.",
        *(f"- {name}: {s:.3g} s." for name, s in found.items()),
    ]


def resume(device: torch.device) -> str:
    """A sentence on a small 16-mixed training that is killed in its second epoch and resumed,
    beside one that is not."""
    options = [
        "--model.multi_scale",
        "false",
        "--trainer.accelerator",
        "gpu" if device.type == "cuda" else "cpu",
    ]
    options += ["--trainer.precision", "16-mixed"]
    with tempfile.TemporaryDirectory() as folder:
        data = make_demo(Path(folder, "demo"), train=24, val=8)
        runs = {name: Path(folder, name) for name in ("whole", "killed")}
        lines = {name: command(data, run, 0, 1, more=options) for name, run in runs.items()}
        codes = [
            start(lines["whole"]),
            start(lines["killed"], "batch:9"),
            start([*lines["killed"], "--ckpt_path", "last"]),
        ]
        if codes != [0, -signal.SIGKILL, 0]:
            return f"- Killed and resumed with 16-mixed: failed, exit codes {codes}."
        scales = [
            torch.load(run / "checkpoints/last.ckpt", weights_only=True).get("MixedPrecision", {})
            for run in runs.values()
        ]
        unlike = difference(runs["killed"], runs["whole"])
    scaler = f"the scaler ends {'the same' if scales[0] == scales[1] else f'otherwise ({scales})'}"
    rest = f"differs in {unlike}" if unlike else "is the same to the bit"
    return (
        "- Killed and resumed with 16-mixed:"
        f" {scaler if scales[0] else 'no scaler on this device'}; the run {rest}."
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--size", default="s")
    parser.add_argument("--image-size", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20, help="of steps to measure in each row")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--yardsticks", nargs="*", choices=YARDSTICKS, default=list(YARDSTICKS))
    parser.add_argument("--page", type=Path, help="write the table to this file too")
    given, others = parser.parse_known_args(arguments)
    on_cpu = ["--trainer.accelerator", "cpu"] in [others[k : k + 2] for k in range(len(others))]
    if not (on_cpu or torch.cuda.is_available()):
        parser.error("torch finds no GPU here; for a dry run add --trainer.accelerator cpu")
    device = torch.device("cpu" if on_cpu else "cuda")
    sizes = {
        "data.image_size": given.image_size,
        "data.batch_size": given.batch_size,
        "model.network.size": given.size,
    }
    options = [
        "--data.dataset",
        given.data,
        *(str(x) for key, value in sizes.items() for x in (f"--{key}", value)),
        *others,
    ]

    lines = [["training", "images/s", "waiting for data", "memory of the GPU, GiB"]]
    work: list[Callable[[], list[str]]] = [
        lambda name=name: training(name, options, given.seconds) for name in given.rows
    ]  # type: ignore[misc]
    work += [
        lambda name=name: yardstick(name, given.batch_size, given.image_size, given.seconds, device)  # type: ignore[misc]
        for name in given.yardsticks
    ]
    for each in work:
        lines.append(each())
        print(" | ".join(lines[-1]), flush=True)
    typed = sys.argv[1:] if arguments is None else arguments
    text = [
        f"    {shlex.join(['python', '-m', 'benchmarks.gpu_speed', *typed])}",
        "",
        f"On {described(host())}:",
        "",
    ]
    text += [*markdown(lines), "", *epoch(options), resume(device)]
    print("\n".join(text))
    if given.page:
        page = "\n".join(["# Speed on a GPU", "", *text, ""])
        write_atomically(given.page, lambda file: file.write(page.encode()))


if __name__ == "__main__":
    main()
