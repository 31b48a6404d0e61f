"""What can be measured only on a GPU: rates of training steps one by one, then checks side by side.

It ends within `limit` seconds, and each row is printed, and is in OUT/summary.md, when it is known.

Once, in the root of the checkout (.gpu and .whl travel with the call, 64 MiB with the checkout):

    printf '/.gpu/\\n/.whl/\\n' >> .git/info/exclude
    mkdir -p .gpu && cp -r ../shared/data/bccd/BCCD ../shared/weights/yolov5n.pt .gpu/
    python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 -d .whl \\
        jsonargparse==4.53.0 docstring-parser==0.18.0 typeshed-client==2.15.0

Those three packages were missing there; KINDS.md, beside the device tool's README.md, lists what
is there. Then, in a call with `carry` .gpu and .whl and a `timeout_s` above the limit:

    python3 -m pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl
    PYTHONPATH=/tmp/site python3 -m benchmarks.on_a_gpu $OUT

Rehearsal on a processor, two minutes:

    python -m benchmarks.on_a_gpu --device cpu --data ../shared/data/bccd/BCCD \\
        --weights ../shared/weights/yolov5n.pt /tmp/out --image_size 64 --batch_size 4 \\
        --seconds 1 --epochs 1 --models [n] --precisions '[32-true, bf16-mixed]' --workers 0
"""

import os
import re
import shlex
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import auto_cli

from boltbox.detector.commands.benchmark.command import BARE, attempt
from boltbox.detector.commands.benchmark.stopwatch import Stopwatch
from boltbox.detector.commands.training_process import TrainingProcess
from boltbox.detector.system.operating_system import PARENT

BEGIN = time.monotonic()
CHECKS = 140  # seconds of the limit for the checks
TELLING = re.compile(r"\| |all |batch:|speed:|memory:|\w*Error|.*error: ")


class GpuStep(Stopwatch):
    """A Stopwatch that also notes the most memory, and profiles the last two steps that do not
    count.

    Args:
        report: The file; the profile is beside it.
        seconds: Stop the training after this time.
    """

    def __init__(self, report: str, seconds: float) -> None:
        super().__init__(report, skip=6, seconds=seconds)
        self.profiler = torch.profiler.profile()

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_batch_start(trainer, *args)
        if self.skip == 2:
            self.profiler.start()

    def on_train_batch_end(self, *args: Any) -> None:
        if self.skip == 1:
            self.profiler.stop()
            table = self.profiler.key_averages().table("self_cuda_time_total", row_limit=-1)
            self.report.with_suffix(".txt").write_text(table)
        super().on_train_batch_end(*args)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if torch.cuda.is_available():
            self.measured["GB"] = torch.cuda.max_memory_allocated() / 1e9
        super().on_train_end(trainer, pl_module)


def main(
    out: Path,
    device: str = "gpu",
    data: Path = Path(".gpu/BCCD"),
    weights: Path = Path(".gpu/yolov5n.pt"),
    image_size: int = 640,
    batch_size: int = 16,
    models: tuple[str, ...] = ("n", "s"),
    precisions: tuple[str, ...] = ("32-true", "bf16-mixed", "16-mixed"),
    workers: int = 8,
    seconds: float = 4.0,
    epochs: int = 6,
    limit: float = 400.0,
) -> None:
    """Args as in the module's docstring.

    Args:
        out: Folder for summary.md, profiles and logs.
        device: Of the Trainer.
        data: BCCD.
        weights: yolov5n.pt.
        image_size: Pixels.
        batch_size: Images.
        models: Sizes of the network whose steps are timed.
        precisions: Of the Trainer, likewise; the checks are in the last one, and on a GPU the
            compiled steps.
        workers: Of the loader.
        seconds: To time each row.
        epochs: Of the trainings whose AP is compared.
        limit: Seconds for everything.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    mixed = precisions[-1]
    sizes = f"--data.image_size {image_size} --data.batch_size {batch_size}"
    quiet = f"--report.enabled false --trainer.accelerator {device}"
    plain = "--doctor.enabled false --pictures.enabled false --autoanchor.enabled false"
    plain += " --trainer.enable_progress_bar false --trainer.devices 1"
    python = shlex.quote(sys.executable)
    cli = f"{python} cli.py"
    fit = f"{cli} fit --data.dataset {data} --data.workers {workers} {sizes} {quiet} {plain}"

    def say(line: str) -> None:
        print(line, flush=True)
        with (out / "summary.md").open("a") as file:
            file.write(line + "\n")

    def left() -> float:
        return limit - (time.monotonic() - BEGIN)

    def check(name: str, line: str, most: float) -> None:
        """Print the row of a shell command when it ends, or after `most` seconds."""
        begin = time.monotonic()
        shell = ["bash", "-c", f"unset {PARENT}; {line}"]  # boltbox may be a child of the line's
        process = TrainingProcess(shell, out / f"{name}.log", OMP_NUM_THREADS="2")
        code = process.finish(most)
        say(f"| {name} | exit status {code} | {time.monotonic() - begin:.0f} |")
        for each in filter(TELLING.match, process.log.read_text().splitlines()):
            say(f"    {each}")

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    say(f"# {gpu}, torch {torch.__version__}\n")
    say("| steps | images/s | waiting for data | GB |\n|---|---|---|---|")
    settings = [(model, precision, "") for model in models for precision in precisions]
    if device == "gpu":
        settings.append((models[0], mixed, "--model.compile true"))
    for model, precision, more in settings:
        if left() < CHECKS + 10:
            break
        name = f"{model} {precision} {more}".strip()
        report = out / f"{name.replace(' ', '-')}.json"
        line = f"{fit} {BARE} --trainer.limit_train_batches 12 --run {work}/{report.stem} {more}"
        line += f" --model.network.size {model} --trainer.precision {precision}"
        line += " --trainer.callbacks benchmarks.on_a_gpu.GpuStep"
        line += f" --trainer.callbacks.report {report} --trainer.callbacks.seconds {seconds}"
        row, failure = attempt(shlex.split(line), report, min(left() - CHECKS, 80 if more else 40))
        if failure:
            say(f"| {name} | {failure} | | |")
            continue
        rate = row["images"] / row["seconds"]
        say(f"| {name} | {rate:.1f} | {row['waiting']:.1%} | {row.get('GB', 0):.2f} |")
    say("\n| check | result | s |\n|---|---|---|")
    ap = f"{python} -m benchmarks.recipes --data {data} --seeds 0 --jobs 2 --folder {work}/ap"
    for precision in (precisions[0], mixed):
        ap += f" --recipe '{precision}=--trainer.precision {precision}'"
    ap += f" -- --trainer.max_epochs {epochs} {sizes} --model.start.weights {weights.resolve()} {quiet}"
    best = f"{work}/ap/{data.name}/{precisions[0]}/0/checkpoints/best.ckpt"
    validate = f"{cli} validate --ckpt_path {best} --data.dataset {data} {quiet}"
    validate += f" --trainer.precision {mixed} --run {work}/val"
    resume = f"{python} -m benchmarks.resume_fuzz --kills 1 --ranks 1 --more '{quiet}"
    resume += f" --trainer.precision {mixed} --trainer.deterministic warn'"
    few = "--trainer.max_epochs 1 --trainer.limit_train_batches 3 --trainer.limit_val_batches 1"
    predict = f"{cli} predict --ckpt_path {weights} --source {data}/JPEGImages --run {work}/predict"
    predict += f" --image_size {image_size}"
    torchrun = f"{python} -m torch.distributed.run --standalone --nproc-per-node 1 --"
    quick = "-q -m quick -n 0 -p no:cacheprovider tests/model tests/training/test_batch_size.py"
    lines = {
        "tests": f"{python} -m pytest {quick}",
        "ap": f"{ap} && {validate}",
        "resume": resume,
        "auto": f"{fit} {few} --data.batch_size auto --run {work}/auto",
        "predict": predict,
        "nccl": f"{torchrun} {fit.partition(' ')[2]} {few} --trainer.strategy ddp --run {work}/nccl",
    }
    with ThreadPoolExecutor(len(lines)) as pool:
        for name, line in lines.items():
            pool.submit(check, name, line, left() - 10)
    say(f"\nin all: {time.monotonic() - BEGIN:.0f} s")


if __name__ == "__main__":
    auto_cli(main)
