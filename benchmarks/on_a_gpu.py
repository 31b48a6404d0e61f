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
        --seconds 1 --epochs 1 --models [n] --precisions '[32-true, bf16-mixed]' \\
        --mixed bf16-mixed --modes [] --workers 0
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import auto_cli

from boltbox.detector.commands.benchmark.stopwatch import Stopwatch
from boltbox.detector.commands.main import main as boltbox

BEGIN = time.monotonic()
CHECKS = 170  # seconds of the limit for loader and checks
PLAIN = (
    "--report.enabled false --doctor.enabled false --pictures.enabled false"
    " --autoanchor.enabled false --trainer.enable_progress_bar false --trainer.devices 1"
)
STEPS = (
    "--warmup.warmup_epochs 0 --model.optim.lr0 0 --trainer.max_epochs 1000000"
    " --trainer.limit_train_batches 12 --trainer.check_val_every_n_epoch 1000000"
    " --trainer.limit_val_batches 0 --trainer.logger false"
)
WAITS = ("Synchronize", "aten::item", "aten::nonzero", "Memcpy DtoH")  # the processor for the GPU
TELLING = re.compile(r"\| |all |batch:|speed:|memory:|\w*Error|.*error: ")


class GpuStep(Stopwatch):
    """A Stopwatch that also notes the time to the first step and the most memory, and profiles the
    last two steps that do not count.

    Args:
        report: The file.
        seconds: Stop the training after this time.
        mode: Of torch.compile for the whole network, like reduce-overhead; "": none.
        profile: File of the calls that wait, without the Stopwatch's own two per step.
    """

    def __init__(self, report: str, seconds: float, mode: str = "", profile: str = "") -> None:
        super().__init__(report, skip=6, seconds=seconds)
        self.mode = mode
        self.profile = profile
        self.begin = time.monotonic()

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self.mode:
            pl_module.network.compile(mode=self.mode, dynamic=False)

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_batch_start(trainer, *args)
        self.measured.setdefault("start", time.monotonic() - self.begin)
        if self.mode:
            torch.compiler.cudagraph_mark_step_begin()
        if self.profile and self.skip == 2:
            self.profiler = torch.profiler.profile()
            self.profiler.start()

    def on_train_batch_end(self, *args: Any) -> None:
        if self.profile and self.skip == 1:
            self.profiler.stop()
            averages = self.profiler.key_averages()
            lines = [averages.table(sort_by="self_cuda_time_total", row_limit=30)]
            for event in averages:
                if any(name in event.key for name in WAITS):
                    lines.append(f"{event.key}: {event.count / 2:g} per step")
            Path(self.profile).write_text("\n".join(lines))
        super().on_train_batch_end(*args)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if torch.cuda.is_available():
            self.measured["GB"] = torch.cuda.max_memory_allocated() / 1e9
            torch.cuda.reset_peak_memory_stats()
        super().on_train_end(trainer, pl_module)


def main(
    out: Path,
    device: str = "gpu",
    data: Path = Path(".gpu/BCCD"),
    weights: Path = Path(".gpu/yolov5n.pt"),
    image_size: int = 640,
    batch_size: int = 16,
    models: tuple[str, ...] = ("n", "s"),
    precisions: tuple[str, ...] = ("32-true", "16-mixed", "bf16-mixed"),
    mixed: str = "16-mixed",
    modes: tuple[str, ...] = ("blocks", "reduce-overhead"),
    workers: int = 8,
    seconds: float = 4.0,
    epochs: int = 6,
    limit: float = 400.0,
) -> None:
    """Args as in the module's docstring.

    Args:
        out: Folder for summary.md, profile.txt and logs.txt.
        device: Of the Trainer.
        data: BCCD.
        weights: yolov5n.pt.
        image_size: Pixels.
        batch_size: Images.
        models: Sizes of the network whose steps are timed.
        precisions: Of the Trainer, likewise.
        mixed: Precision of compiled steps and of the checks.
        modes: "blocks" as model.compile does, or a mode of torch.compile for the whole network.
        workers: Of the loader.
        seconds: To time each row.
        epochs: Of the trainings whose AP is compared.
        limit: Seconds for everything.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    data = data.resolve()
    weights = weights.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    fit = f"fit --data.dataset {data} --data.image_size {image_size} --data.batch_size {batch_size}"
    fit += f" --data.workers {workers} --trainer.accelerator {device} {PLAIN}"

    def say(line: str) -> None:
        print(line, flush=True)
        with (out / "summary.md").open("a") as file:
            file.write(line + "\n")

    def left() -> float:
        return limit - (time.monotonic() - BEGIN)

    def time_steps(model: str, precision: str, mode: str, most: float) -> None:
        """Print the row of one setting, or why there is none after `most` seconds."""
        name = f"{model} {precision} {mode}".strip()
        report = work / "step.json"
        report.unlink(missing_ok=True)
        line = f"{fit} {STEPS} --run {work}/{model}-{precision}-{mode} --model.network.size {model}"
        line += f" --trainer.precision {precision} --model.compile {str(mode == 'blocks').lower()}"
        line += " --trainer.callbacks benchmarks.on_a_gpu.GpuStep"
        line += f" --trainer.callbacks.report {report} --trainer.callbacks.seconds {seconds}"
        if mode == "":
            line += f" --trainer.callbacks.profile {out}/profile-{model}.txt"
        elif mode != "blocks":
            line += f" --trainer.callbacks.mode {mode}"
        failure = within(most, line, out / "logs.txt")
        if not report.exists():
            say(f"| {name} | {failure} | | | |")
            return
        row = json.loads(report.read_text())
        rate = row["images"] / (row["seconds"] or 1)
        say(
            f"| {name} | {rate:.1f} | {row['waiting']:.1%} | {row.get('GB', 0):.2f} | {row['start']:.1f} |"
        )

    say(
        f"# {torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}, torch {torch.__version__}\n"
    )
    say("| steps | images/s | waiting for data | GB | first step after s |\n|---|---|---|---|---|")
    settings = [(model, precision, "") for model in models for precision in precisions]
    settings += [(models[0], mixed, mode) for mode in modes]
    for model, precision, mode in settings:
        if left() > CHECKS + 10:
            time_steps(model, precision, mode, min(left() - CHECKS, 80 if mode else 40))
    say("\n| check | result | s |\n|---|---|---|")
    python = shlex.quote(sys.executable)
    cli = f"{python} cli.py"
    ap = f"{python} -m benchmarks.recipes --data {data} --seeds 0 --jobs 2 --folder {work}/ap"
    for precision in ("32-true", mixed):
        ap += f" --recipe '{precision}=--trainer.precision {precision}'"
    ap += f" -- --trainer.max_epochs {epochs} --data.image_size {image_size} --data.batch_size {batch_size}"
    ap += f" --trainer.accelerator {device} --model.start.weights {weights} --report.enabled false"
    validate = f"{cli} validate --ckpt_path {work}/ap/BCCD/32-true/0/checkpoints/best.ckpt --data.dataset {data}"
    validate += f" --trainer.precision {mixed} --trainer.accelerator {device} --report.enabled false --run {work}/val"
    predict = f"{cli} predict --ckpt_path {weights} --source {data}/JPEGImages"
    few = "--trainer.max_epochs 1 --trainer.limit_train_batches 3 --trainer.limit_val_batches 1"
    loader = f"{python} -m benchmarks.loader {data} --image_size {image_size} --cache ram"
    run_checks({"loader": loader}, min(left(), 30), work, out, say)
    run_checks(
        {
            "tests": f"{python} -m pytest -q -m quick -n 0 -p no:cacheprovider tests/model tests/training/test_batch_size.py",
            "ap": f"{ap} && {validate}",
            "resume": f"{python} -m benchmarks.resume_fuzz --kills 1 --ranks 1"
            f" --more '--trainer.accelerator {device} --trainer.precision {mixed} --trainer.deterministic warn'",
            "auto": f"{cli} {fit} {few} --data.batch_size auto --run {work}/auto",
            "predict": f"{predict} --image_size {image_size} --run {work}/predict",
            "tiles": f"{predict}/BloodImage_00000.jpg --tile_size 320 --run {work}/tiles",
            "nccl": f"{python} -m torch.distributed.run --standalone --nproc-per-node 1 -- cli.py {fit} {few}"
            f" --trainer.strategy ddp --run {work}/nccl",
        },
        left() - 10,
        work,
        out,
        say,
    )
    say(f"\nin all: {time.monotonic() - BEGIN:.0f} s")


def within(seconds: float, line: str, log: Path) -> str:
    """Run a command in this process, its output to the end of a file; return how it failed."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"stopped after {seconds:.0f} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
            print(f"\n==> {line}")
            boltbox(shlex.split(line))
    except (Exception, SystemExit) as e:
        return f"{type(e).__name__}: {e}".splitlines()[0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def run_checks(lines: dict[str, str], seconds: float, work: Path, out: Path, say: Any) -> None:
    """Run shell commands side by side; print each one's row when it ends, or after `seconds`."""
    begin = time.monotonic()
    environment = dict(os.environ, OMP_NUM_THREADS="2", PYTHONUNBUFFERED="1")
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    running = {}
    for name, line in lines.items():
        with (work / f"{name}.log").open("w") as file:
            running[name] = subprocess.Popen(
                line, shell=True, stdout=file, stderr=file, env=environment, start_new_session=True
            )
    while running:
        time.sleep(0.2)
        is_late = time.monotonic() - begin > seconds
        for name, process in list(running.items()):
            if process.poll() is None and not is_late:
                continue
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            result = (
                "done" if process.returncode == 0 else f"exit status {process.returncode or 'none'}"
            )
            say(f"| {name} | {result} | {time.monotonic() - begin:.0f} |")
            text = (work / f"{name}.log").read_text()
            for each in filter(TELLING.match, text.splitlines()):
                say(f"    {each}")
            with (out / "logs.txt").open("a") as file:
                file.write(f"\n==> {lines[name]}\n{text}")
            del running[name]


if __name__ == "__main__":
    auto_cli(main)
