"""A dozen image backbones of timm, from small to large: what each makes of the network, and that it
trains.

    python -m benchmarks.backbones FOLDER [NAME ...]

Parameters and GFLOPs (two a multiplication with its addition, 640 x 640 px, one class) are those of
the whole detector with the neck of YOLOv5n; the licence is what timm states for the weights of that
name. Each then trains two epochs on the demo data set, from fresh weights, by a `fit` of its own in
FOLDER; what is there already is not trained again.
"""

import csv
import subprocess
import sys
from pathlib import Path

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.tables import markdown
from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.model.network import YOLOv5

ROOT = Path(__file__).parents[1]
NAMES = (
    "mobilenetv3_small_100",
    "mobilenetv4_conv_small",
    "regnetx_002",
    "tf_efficientnet_lite0",
    "mobilenetv3_large_100",
    "convnext_atto",
    "hgnetv2_b0",
    "efficientnet_b0",
    "regnety_004",
    "mobilenetv4_conv_medium",
    "resnet18",
    "resnet50",
)


def size(backbone: str) -> tuple[float, float]:
    """Millions of parameters and GFLOPs at 640 px of a detector, found without memory for its
    tensors."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        network = YOLOv5(1, backbone=backbone).eval()
        network(torch.zeros(1, 3, 640, 640))
    return sum(p.numel() for p in network.parameters()) / 1e6, counter.get_total_flops() / 1e9


def train(backbone: str, folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv of two epochs on the demo data set.

    Raises:
        CalledProcessError: the training failed; its log says why.
    """
    if not (folder / "metrics.csv").is_file():
        claim(folder, "fit")
        words = [
            "--data.dataset",
            "demo",
            "--trainer.max_epochs",
            "2",
            "--model.network.backbone",
            backbone,
            "--run",
            str(folder),
        ]
        with (folder / "fit.log").open("w") as log:
            command = [sys.executable, str(ROOT / "cli.py"), "fit", *words]
            subprocess.run(command, stdout=log, stderr=log, check=True)
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def row(name: str, folder: Path) -> dict[str, str]:
    """Of the table."""
    backbone = name if name == "yolov5" else f"timm/{name}"
    parameters, gflops = size(backbone)
    epochs = train(backbone, folder / name)
    losses = [
        sum(float(epoch[f"train/{part}_loss"]) for part in ("box", "obj", "cls"))
        for epoch in epochs
    ]
    about = {} if name == "yolov5" else timm.get_pretrained_cfg(name).to_dict()
    weights = f"{name}.{about['tag']}" if about.get("tag") else "-"
    return {
        "backbone": backbone,
        "parameters, M": f"{parameters:.2f}",
        "GFLOPs": f"{gflops:.1f}",
        "timm's weights": weights,
        "their licence": about.get("license") or ("unknown" if about else "-"),
        "loss of epoch 1": f"{losses[0]:.4f}",
        "of epoch 2": f"{losses[1]:.4f}",
        "seconds an epoch": f"{sum(float(epoch['seconds']) for epoch in epochs) / len(epochs):.0f}",
    }


def main() -> None:
    folder, *names = sys.argv[1:] or sys.exit(__doc__)
    rows = [row(name, Path(folder)) for name in names or ("yolov5", *NAMES)]
    print("\n".join(markdown([list(rows[0]), *(list(row.values()) for row in rows)])))


if __name__ == "__main__":
    main()
