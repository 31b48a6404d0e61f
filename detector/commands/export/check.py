"""Compares the detections of an exported file with PyTorch's in the same images."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.commands.export.images import letterboxed
from boltbox.detector.inference.exported import Exported, Precision, Suppression
from boltbox.detector.model.postprocess import NMSResult, nms
from boltbox.detector.system.errors import InputError


class Tolerance(NamedTuple):
    """How far detections of an exported file may differ from PyTorch's.

    Attributes:
        pixels: largest difference of box coordinates.
        score: largest difference of scores.
        share: minimum share of PyTorch's detections that the file has too.
        overlap: minimum IoU of a detection of both.
        conf: minimum confidence of a detection.
    """

    pixels: float
    score: float
    share: float
    overlap: float
    conf: float


# float16: 11 bits through some sixty layers, and a side is 4 sigmoid^2 times an anchor. int8: only
# that it is the same network; `validate` measures how good it is.
TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(0.1, 0.001, 0.99, 0.9, 0.001),
    "float16": Tolerance(4.0, 0.03, 0.9, 0.9, 0.25),
    "int8": Tolerance(float("inf"), float("inf"), 0.5, 0.5, 0.25),
}
TIE = 1e-6  # smaller differences of scores are rounding, which must not choose the class


@torch.no_grad()
def check(exported: Exported, decoded: Decoded, images: Sequence[np.ndarray]) -> str:
    """Compare the file's detections with those of the float32 network.

    Args:
        exported: the file.
        decoded: the network.
        images: (H, W, 3) uint8 each.

    Returns:
        A sentence on how far they differ.

    Raises:
        InputError: they differ more than its precision explains, or are not finite.
    """
    metadata = exported.metadata
    height, width = metadata.image_size
    batches = [letterboxed(images, (height, width))]
    if metadata.dynamic:  # also a wider one
        batches.append(letterboxed(images[:1], (height, width + metadata.stride)))
    limit = TOLERANCES[metadata.precision]
    suppression = metadata.nms or Suppression(limit.conf, 0.45, 300, False)
    thresholds = suppression._asdict() | {"multi_label": False}
    pixels = 0.0
    score = TIE
    total = 0
    matched = 0
    for batch in map(torch.from_numpy, batches):
        expected_rows = torch.cat([decoded(image) for image in batch.split(1)])
        if not expected_rows.isfinite().all():
            raise InputError("no file is written: the network's output is not finite")
        rows = exported(batch)
        if not metadata.nms:  # a barely trained network has many scores of 1
            tied = (rows[..., 4:] - expected_rows[..., 4:]).abs() < TIE
            rows[..., 4:][tied] = expected_rows[..., 4:][tied]
        both = zip(nms(rows, **thresholds), nms(expected_rows, **thresholds), strict=True)
        for output, expected in both:
            i, k = _matched(output, expected, limit.overlap)
            total += len(expected.scores)
            matched += len(k)
            if len(k):
                pixels = max(pixels, float((output.boxes[i] - expected.boxes[k]).abs().max()))
                score = max(score, float((output.scores[i] - expected.scores[k]).abs().max()))
    if not total:
        return f"PyTorch finds nothing in {len(images)} images; to compare, give others with --data"
    difference = (
        f"{matched}/{total} detections match PyTorch ({len(images)} images), largest difference"
        f" {pixels:.2g} px, {score:.2g} in a score"
    )
    slack = limit.share < 1  # a single detection may be at the threshold
    if pixels > limit.pixels or score > limit.score or matched < total * limit.share - slack:
        raise InputError(
            f"no file is written: more than {metadata.precision} explains ({difference}); train the"
            " network longer, or give images of its kind with --data"
        )
    return difference


def _matched(output: NMSResult, expected: NMSResult, overlap: float) -> tuple[Tensor, Tensor]:
    """Indices into both of the expected detections that the output has, each by the detection of
    its class with the largest IoU."""
    # a barely trained network has boxes without area
    pixel = output.boxes.new_tensor([-1.0, -1.0, 1.0, 1.0])
    iou = box_iou(output.boxes + pixel, expected.boxes + pixel)
    iou = iou * (output.classes[:, None] == expected.classes[None])
    # a row of zeros: the output may be empty
    iou = torch.cat((iou, iou.new_zeros(1, len(expected.scores))))
    best, index = iou.max(0)
    matched = (best >= overlap).nonzero(as_tuple=True)[0]
    return index[matched], matched
