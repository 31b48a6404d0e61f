"""What becomes of a validation's figures if backbone and neck compute in bfloat16; the head always
computes in float32.

python -m benchmarks.validation_precision --dataset BCCD --image_size 320
runs/*/checkpoints/best.ckpt
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import finish_on_device
from boltbox.detector.evaluation.metrics import DetectionMetrics
from boltbox.detector.inference.detections import to_rows
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training.evaluation import VALIDATION
from boltbox.detector.training.module import Detector

SHOWN = ("P", "R", "mAP50", "mAP50-95", "coco/AP")


def maps_of(network: YOLOv5, images: Tensor) -> list[Tensor]:
    """The head's raw prediction, whatever backbone and neck compute in."""
    images = images.to(network.backbone.stem.conv.weight.dtype)
    return network.head([maps.float() for maps in network.neck(network.backbone(images))])


@torch.inference_mode()
def validate(detector: Detector, data: DetectionData, network: YOLOv5) -> dict[str, float]:
    metrics = DetectionMetrics(len(detector.names))
    for batch in map(finish_on_device, data.val_dataloader()):
        rows = to_rows(
            network.decode(maps_of(network, batch.images)), batch.letterboxes, VALIDATION
        )
        truths = [truth for truth in batch.truths if truth is not None]
        metrics.update(rows, truths, batch.indices)
    return metrics.compute().summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--image_size", type=int, required=True)
    given = parser.parse_args()
    data = DetectionData(given.dataset, image_size=given.image_size, batch_size=16, workers=0)
    data.prepare_data()
    data.setup("fit")
    print(f"| checkpoint | {' | '.join(SHOWN)} |\n|{'---|' * (len(SHOWN) + 1)}")
    for path in given.checkpoints:
        detector = Detector.load(path, "cpu")
        exact, low = detector.evaluated.fused(), detector.evaluated.fused()
        low.backbone.bfloat16()
        low.neck.bfloat16()
        a, b = (validate(detector, data, network) for network in (exact, low))
        print(
            f"| {path} |"
            f" {' | '.join(f'{a[name]:.4f} {b[name] - a[name]:+.4f}' for name in SHOWN)} |"
        )


if __name__ == "__main__":
    main()
