"""Images and objects laid over each other: mosaic, copy-paste and MixUp."""

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from boltbox.detector.data.sample import Polygons, Sample
from boltbox.detector.data.transforms.colour import flip
from boltbox.detector.data.transforms.letterbox import LazyImage, letterbox_sample
from boltbox.detector.model.boxes import area_xyxy, clip_xyxy

MAX_COVERED = 0.30  # share of an existing box that a pasted one may cover


def mosaic(samples: Sequence[Sample], size: int, xc: int, yc: int, main: int = 0) -> Sample:
    """Four samples whose longer sides are at most `size` pixels -> one of 2 size x 2 size, boxes
    clipped to it. Their inner corners meet at (xc, yc): top left, top right, bottom left, bottom
    right.

    Image and objects are those of all four; there is no way back to a file; all else is that of
    samples[main], whose image says whether the mosaic is still to be rendered.
    """
    side, lazy = 2 * size, isinstance(samples[main].image, LazyImage)
    canvas, placed = LazyImage((side, side), []), []
    for i, sample in enumerate(samples):
        (height, width), left, top = sample.size, i % 2 == 0, i < 2
        shift = xc - width * left, yc - height * top
        quarter = 0 if left else xc, 0 if top else yc, xc if left else side, yc if top else side
        image = LazyImage.of(sample.image)
        canvas.patches.extend(image.moved(1, shift, canvas.shape, quarter).patches)
        placed.append(sample.moved(None, (1, 1), shift))
    polygons: Polygons = []
    if any(sample.polygons for sample in placed):
        polygons = [parts for sample in placed for parts in sample.parts()]
    return samples[main].replace(
        image=canvas if lazy else canvas.render(),
        boxes=clip_xyxy(np.concatenate([sample.boxes for sample in placed]), side, side),
        classes=np.concatenate([sample.classes for sample in placed]),
        polygons=[[part.clip(0, side) for part in parts] for parts in polygons],
        letterbox=None,
        truth=None,
    )


class Mosaic:
    """With probability p a mosaic with three random partners (Bochkovskiy et al. 2020, arXiv
    2004.10934), else the sample letterboxed to size x size pixels."""

    def __init__(self, size: int, p: float = 1.0) -> None:
        self.size, self.p = size, p

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample]
    ) -> Sample:
        if rng.random() >= self.p:
            return letterbox_sample(sample, (self.size, self.size), scaleup=True)
        yc, xc = (int(rng.uniform(self.size / 2, 3 * self.size / 2)) for _ in range(2))
        samples, order = [sample, partner(), partner(), partner()], rng.permutation(4).tolist()
        return mosaic([samples[i] for i in order], self.size, xc, yc, main=order.index(0))


def copy_paste(sample: Sample, candidates: Sequence[int]) -> Sample:
    """Paste the mirror images of some objects (Ghiasi et al. 2020, arXiv 2012.07177) where they
    cover little of what is there.

    Args:
        sample: its objects with polygons can be copied.
        candidates: numbers of the objects to try, in this order.
    """
    mirrored, boxes, pasted = flip(sample, 1), sample.boxes, list[int]()
    mask = np.zeros(sample.size, np.uint8)
    for i in candidates:
        if sample.polygons[i] and (_covered(mirrored.boxes[i], boxes) < MAX_COVERED).all():
            boxes = np.vstack((boxes, mirrored.boxes[i]))
            pasted.append(i)
            outline = [part.astype(np.int32) for part in sample.polygons[i]]
            cv2.drawContours(mask, outline, -1, 1, cv2.FILLED)
    return sample.replace(
        image=np.where(mask[:, ::-1, None] > 0, mirrored.image, sample.image),
        boxes=boxes,
        classes=np.concatenate((sample.classes, sample.classes[pasted])),
        polygons=sample.polygons + [mirrored.polygons[i] for i in pasted],
    )


def _covered(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(n,) share of each of `boxes` (n, 4) that `box` (4,) covers."""
    overlap = (
        (np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])).clip(0).prod(1)
    )
    return overlap / (area_xyxy(boxes) + 1e-7)


class CopyPaste:
    """Try this share p of the objects, chosen at random, if there are any with polygons."""

    def __init__(self, p: float = 0.0) -> None:
        self.p = p

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        n = len(sample.boxes)
        if not self.p or not any(sample.polygons):
            return sample
        return copy_paste(sample, rng.permutation(n)[: round(self.p * n)].tolist())


def mixup(a: Sample, b: Sample, ratio: float) -> Sample:
    """ratio * a + (1 - ratio) * b with the objects of both (Zhang et al. 2018, arXiv 1710.09412).
    All else is that of a, but there is no way back to a file any more."""
    image = (a.image * ratio + b.image * (1 - ratio)).astype(np.uint8)
    boxes, classes = np.concatenate((a.boxes, b.boxes)), np.concatenate((a.classes, b.classes))
    polygons = a.parts() + b.parts() if a.polygons or b.polygons else []
    return a.replace(
        image=image, boxes=boxes, classes=classes, polygons=polygons, letterbox=None, truth=None
    )


class MixUp:
    """With probability p blend with another sample that went through the same steps, ratio from
    Beta(32, 32)."""

    def __init__(self, p: float = 0.0) -> None:
        self.p = p

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample]
    ) -> Sample:
        if rng.random() >= self.p:
            return sample
        return mixup(sample, partner(), float(rng.beta(32.0, 32.0)))
