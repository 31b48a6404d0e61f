"""Whether an exported file says what PyTorch says of the same images."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.commands.export.metadata import Metadata, Precision
from boltbox.detector.commands.export.runtime import Exported
from boltbox.detector.data.demo import draw_image
from boltbox.detector.data.images import find_images, read_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.model.postprocess import NMSResult, nms
from boltbox.detector.system.errors import InputError

MOST = 8  # images that are looked at


class Tolerance(NamedTuple):
    """Largest difference of box coordinates in pixels, and of scores; least share of detections
    found again."""

    pixels: float
    score: float
    share: float


# float16: 11 bits through some sixty layers, and a side is 4 sigmoid^2 times an anchor. int8: only
# that it is no other network; how good it is, `validate` says.
TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(0.1, 0.001, 0.99),
    "float16": Tolerance(4.0, 0.03, 0.9),
    "int8": Tolerance(float("inf"), float("inf"), 0.5),
}


class Difference(NamedTuple):
    """pixels, score: largest difference · images: looked at · sure: detections that are sure in
    PyTorch · found: those of them that the file has too, with the same class and an overlap of at
    least 0.9 (int8: 0.5)."""

    pixels: float
    score: float
    images: int
    sure: int
    found: int

    def __str__(self) -> str:
        again = (
            f"; {self.found} of {self.sure} detections found again"
            if self.sure
            else "; no detections to compare"
        )
        largest = f"boxes {self.pixels:.2g} px, scores {self.score:.2g}"
        return f"largest difference from PyTorch on {self.images} images: {largest}{again}"

    def within(self, t: Tolerance) -> bool:
        return (
            self.pixels <= t.pixels
            and self.score <= t.score
            and self.found >= self.sure * t.share - (t.share < 1)
        )


def check_images(source: str | None) -> list[np.ndarray]:
    """(H, W, 3) uint8 RGB: the first images of an image, folder or glob pattern; None: of the demo
    data set, drawn here."""
    if source is None:
        return [draw_image(np.random.default_rng(i))[0][..., ::-1].copy() for i in range(4)]
    files = find_images(source)[:MOST]
    if not files:
        raise InputError(f"source {source}: no image file there")
    return [read_image(file) for file in files]


def batches(images: Sequence[np.ndarray], metadata: Metadata) -> list[Tensor]:
    """Float (B, 3, H, W) in 0..1, letterboxed to the file's size; for a dynamic file all at once,
    and then the first alone in a smaller shape."""
    shape, stride = metadata.image_size, metadata.stride
    stacked = _stack(images, shape)
    if not metadata.dynamic:
        return [stacked]
    smaller = (max(shape[0] // 2 // stride, 2) * stride, max(shape[1] // stride - 1, 2) * stride)
    return [stacked, _stack(images[:1], smaller)]


def _stack(images: Sequence[np.ndarray], shape: tuple[int, int]) -> Tensor:
    arrays = [letterbox(image, shape)[0] for image in images]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous().float() / 255


@torch.no_grad()
def compare(exported: Exported, decoded: Decoded, images: Sequence[np.ndarray]) -> Difference:
    """The file beside the float32 network. Without suppression inside all rows are compared in
    float32, else those that PyTorch gives a score of 0.1; with it, the detections that both
    have."""
    inside, precision = exported.metadata.nms, exported.metadata.precision
    conf, iou, max_det, agnostic = inside or (0.25, 0.45, 300, False)
    pixels = score = 0.0
    looked = sure = found = 0
    for batch in batches(images, exported.metadata):
        theirs, ours = exported(batch), torch.cat([decoded(image) for image in batch.split(1)])
        if not inside:
            where = ours[..., 4] * ours[..., 5:].amax(-1) >= (0 if precision == "float32" else 0.1)
            far = (theirs - ours).abs()[where]
            if len(far):
                pixels, score = (
                    max(pixels, float(far[:, :4].max())),
                    max(score, float(far[:, 4:].max())),
                )
        both = [nms(rows, conf, iou, max_det, False, agnostic) for rows in (theirs, ours)]
        for got, wanted in zip(*both, strict=True):
            matched = _matched(got, wanted, 0.5 if precision == "int8" else 0.9)
            if inside and len(matched[0]):
                pixels = max(
                    pixels, float((got.boxes[matched[0]] - wanted.boxes[matched[1]]).abs().max())
                )
                score = max(
                    score, float((got.scores[matched[0]] - wanted.scores[matched[1]]).abs().max())
                )
            sure, found = sure + len(wanted.scores), found + len(matched[0])
        looked += len(batch)
    return Difference(pixels, score, looked, sure, found)


def _matched(got: NMSResult, wanted: NMSResult, least: float) -> tuple[Tensor, Tensor]:
    """Indices into both of the wanted detections that were got, each by the one of its class that
    overlaps it most."""
    if not len(got.scores) or not len(wanted.scores):
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    overlap = box_iou(got.boxes, wanted.boxes) * (got.classes[:, None] == wanted.classes[None])
    best, index = overlap.max(0)
    chosen = (best >= least).nonzero(as_tuple=True)[0]
    return index[chosen], chosen
