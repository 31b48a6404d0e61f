"""What mixed precision costs in accuracy, and gains in speed and memory, over whole trainings.

    python -m benchmarks.gpu --data ../shared/data/bccd/BCCD --weights ../shared/weights/yolov5n.pt
    --epochs 30 python -m benchmarks.gpu --data demo --epochs 1 --precisions 32-true bf16-mixed
    --seeds 0 --image-size 64 \\
        --trainer.accelerator cpu --model.network.width_multiple 0.125

Trains with each precision and seed, each in a process of its own; options it does not know go to
`cli.py fit`. The second line is a dry run without a GPU. Runs and a results.json lie in --folder;
what is finished there is not repeated, so that the work may be done in several calls. The table
goes to --page.
"""

import argparse
import json
import shlex
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch

from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.commands.benchmark.command import PRECISIONS, STOPWATCH, attempt
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.host import described, host

ROOT = Path(__file__).parents[1]
FIGURES = ("mAP50", "mAP50-95")
NEAR = 0.02  # mixed precision is to come so near to float32


def train(options: list[str], run: Path, deadline: float) -> dict[str, Any]:
    """Figures of the best epoch and speed of one training; or `error`."""
    claim(run, "fit")
    watch = run / "stopwatch.json"
    line = [
        sys.executable,
        str(ROOT / "cli.py"),
        "fit",
        *options,
        "--report.enabled",
        "false",
        "--run",
        str(run),
    ]
    watched = [f"--trainer.callbacks+={STOPWATCH}", f"--trainer.callbacks.report={watch}"]
    line += ["--trainer.enable_progress_bar", "false", *watched]
    measured, error = attempt(line, watch, deadline)
    if error:
        return {"error": error}
    metrics = json.loads((run / "metrics.json").read_text())
    found = {name: metrics[name] for name in FIGURES} | {"epoch": metrics["epoch"] + 1}
    return found | {"rate": measured["images"] / measured["seconds"], **measured}


def page(command: str, machine: str, results: dict[str, dict[str, Any]]) -> str:
    """Markdown. results: by "precision, seed"."""
    lines = [
        "# Precision",
        "",
        f"    {command}",
        "",
        (
            f"On {machine}. Figures of the best epoch on the validation split; images/s of the"
            " training steps."
        ),
        "",
        (
            "| precision, seed | mAP50 | mAP50-95 | best epoch | images/s | waiting for data | GPU"
            " memory |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in results.items():
        if "error" in r:
            lines.append(f"| {name} | {r['error']} | | | | | |")
            continue
        gpu = f"{r['gpu_memory'] / 2**30:.2f} GiB" if r["gpu_memory"] else "-"
        lines.append(
            f"| {name} | {r['mAP50']:.4f} | {r['mAP50-95']:.4f} | {r['epoch']} | {r['rate']:.4g} |"
            f" {r['waiting']:.0%} | {gpu} |"
        )
    return "\n".join([*lines, "", *verdicts(results)]) + "\n"


def verdicts(results: dict[str, dict[str, Any]]) -> list[str]:
    """For each mixed precision a sentence on its figures beside those of float32, over the seeds
    that both have."""
    found = []
    for precision in PRECISIONS[1:]:
        pairs = [
            (r, results.get(f"{PRECISIONS[0]}, {name.split(', ')[1]}", {"error": ""}))
            for name, r in results.items()
            if name.startswith(f"{precision},")
        ]
        whole = [
            (ours, exact) for ours, exact in pairs if "error" not in ours and "error" not in exact
        ]
        if whole:
            apart = {
                f: statistics.mean(ours[f] - exact[f] for ours, exact in whole) for f in FIGURES
            }
            speed = statistics.mean(ours["rate"] / exact["rate"] for ours, exact in whole)
            near = all(abs(a) <= NEAR for a in apart.values())
            told = ", ".join(f"{f} {a:+.4f}" for f, a in apart.items())
            verdict = f"{'' if near else 'not '}within {NEAR}; {speed:.2f} times the images/s"
            found.append(
                f"- {precision} less {PRECISIONS[0]}: {told} (seeds: {len(whole)}), {verdict}."
            )
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--image-size", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--weights", help="start from these; default: from scratch")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    parser.add_argument("--deadline", type=float, default=1800, help="seconds for each training")
    parser.add_argument("--folder", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--page", type=Path, default=ROOT / "benchmarks/gpu.md")
    given, others = parser.parse_known_args(arguments)
    on_cpu = ["--trainer.accelerator", "cpu"] in [others[k : k + 2] for k in range(len(others))]
    if not (on_cpu or torch.cuda.is_available()):
        parser.error("torch finds no GPU here; for a dry run add --trainer.accelerator cpu")
    common = ["--data.dataset", given.data, "--data.image_size", str(given.image_size)]
    common += ["--trainer.max_epochs", str(given.epochs), *others]
    common += ["--model.start.weights", given.weights] if given.weights else []
    kept = given.folder / "results.json"
    content = json.loads(kept.read_text()) if kept.is_file() else {"options": common, "runs": {}}
    if content["options"] != common:
        parser.error(
            f"{given.folder} holds runs with other options: {shlex.join(content['options'])}"
        )
    results = content["runs"]
    typed = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.gpu", *typed])
    machine = described(host())
    # seed by seed: an early end leaves whole comparisons
    for seed, precision in product(given.seeds, given.precisions):
        name = f"{precision}, {seed}"
        if "error" in results.get(name, {"error": ""}):
            tries = len(list(given.folder.glob(f"{precision}-{seed}-*")))
            options = [*common, "--trainer.precision", precision, "--seed_everything", str(seed)]
            results[name] = train(
                options, given.folder / f"{precision}-{seed}-{tries}", given.deadline
            )
            print(f"{name}: {results[name]}", flush=True)
            write_atomically(kept, lambda file: file.write(json.dumps(content, indent=1).encode()))
        text = page(command, machine, results)
        write_atomically(given.page, lambda file, text=text: file.write(text.encode()))
    print(page(command, machine, results))


if __name__ == "__main__":
    main()
