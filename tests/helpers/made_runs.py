"""Short runs as a user types them, and what lies in their folders."""

import csv
from pathlib import Path
from shlex import split
from typing import Any

import torch

import cli

ROOT = Path(__file__).parents[2]
QUICK = split(
    "--data.image_size 64 --data.batch_size 8 --data.workers 0 --trainer.enable_progress_bar false"
)
QUICK += split("--report.enabled false --pictures.enabled false --trainer.precision 32-true")
QUICK += split("--model.network.width_multiple 0.125 --model.network.depth_multiple 0.1")
QUICK += split("--model.network.levels [5] --autoanchor.enabled false --doctor.enabled false")


def fit(data: Path, *options: str) -> None:
    cli.main(
        [
            "fit",
            "--config",
            str(ROOT / "configs/yolo.yaml"),
            "--data.dataset",
            str(data),
            *QUICK,
            *options,
        ]
    )


def rows(run: Path) -> list[dict[str, str]]:
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)
