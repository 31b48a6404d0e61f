"""Whether an exported file finds what PyTorch finds in the same images."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.commands.export.write import letterboxed
from boltbox.detector.inference.exported import Exported, Metadata, Precision
from boltbox.detector.model.postprocess import NMSResult, nms
from boltbox.detector.system.errors import InputError


class Tolerance(NamedTuple):
    """Largest difference of box coordinates in pixels, and of scores; least share of detections
    found again; at which overlap; least confidence of a detection."""

    pixels: float
    score: float
    share: float
    overlap: float
    conf: float


# float16: 11 bits through some sixty layers, and a side is 4 sigmoid^2 times an anchor. int8: only
# that it is no other network; how good it is, `validate` says.
TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(0.1, 0.001, 0.99, 0.9, 0.001),
    "float16": Tolerance(4.0, 0.03, 0.9, 0.9, 0.25),
    "int8": Tolerance(float("inf"), float("inf"), 0.5, 0.5, 0.25),
}
TIE = 1e-6  # smaller differences of scores are rounding, which must not choose the class


def batches(images: Sequence[np.ndarray], metadata: Metadata) -> list[Tensor]:
    """Float (B, 3, H, W) in 0..1, letterboxed to the file's size; for a dynamic file all at once,
    and then the first alone in a smaller shape."""
    (height, width), stride = metadata.image_size, metadata.stride
    found = [letterboxed(images, (height, width))]
    if metadata.dynamic:
        smaller = max(height // 2 // stride, 2) * stride, max(width // stride - 1, 2) * stride
        found.append(letterboxed(images[:1], smaller))
    return [*map(torch.from_numpy, found)]


@torch.no_grad()
def check(exported: Exported, decoded: Decoded, images: Sequence[np.ndarray]) -> str:
    """Compare the file's detections with those of the float32 network; a sentence on how far they
    differ.

    Raises:
        InputError: they differ more than its precision explains, or are not finite.
    """
    precision = exported.metadata.precision
    limit, inside = TOLERANCES[precision], exported.metadata.nms
    conf, iou, max_det, agnostic = inside or (limit.conf, 0.45, 300, False)
    pixels, score = 0.0, TIE
    wanted = found = 0
    for batch in batches(images, exported.metadata):
        right_rows = torch.cat([decoded(image) for image in batch.split(1)])
        if not right_rows.isfinite().all():
            raise InputError("no file is written: the network's output is not finite")
        rows = exported(batch)
        if not inside:  # a network that has learned little has many scores of 1
            scores, right_scores = rows[..., 4:], right_rows[..., 4:]
            tied = (scores - right_scores).abs() < TIE
            scores[tied] = right_scores[tied]
        theirs = nms(rows, conf, iou, max_det, False, agnostic)
        ours = nms(right_rows, conf, iou, max_det, False, agnostic)
        for got, right in zip(theirs, ours, strict=True):
            i, k = _matched(got, right, limit.overlap)
            wanted, found = wanted + len(right.scores), found + len(k)
            if len(k):
                pixels = max(pixels, float((got.boxes[i] - right.boxes[k]).abs().max()))
                score = max(score, float((got.scores[i] - right.scores[k]).abs().max()))
    difference = (
        f"{found}/{wanted} detections match PyTorch ({len(images)} images), largest difference"
        f" {pixels:.2g} px, {score:.2g} in a score"
    )
    slack = limit.share < 1  # a single detection may be at the threshold
    if pixels > limit.pixels or score > limit.score or found < wanted * limit.share - slack:
        raise InputError(
            f"no file is written: more than {precision} explains ({difference}); train the network"
            " longer, or give images of its kind with --data"
        )
    return difference


def _matched(got: NMSResult, right: NMSResult, least: float) -> tuple[Tensor, Tensor]:
    """Indices into both of the right detections that were got, each by the one of its class that
    overlaps it most."""
    # a network that has learned little has boxes without area
    pixel = got.boxes.new_tensor([-1.0, -1.0, 1.0, 1.0])
    overlap = box_iou(got.boxes + pixel, right.boxes + pixel)
    overlap = overlap * (got.classes[:, None] == right.classes[None])
    # a row of zeros: nothing may have been got
    overlap = torch.cat((overlap, overlap.new_zeros(1, len(right.scores))))
    best, index = overlap.max(0)
    chosen = (best >= least).nonzero(as_tuple=True)[0]
    return index[chosen], chosen
