"""Images and objects laid over each other: mosaic, copy-paste and MixUp."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from boltbox.detector.data.sample import Polygons, Sample
from boltbox.detector.data.transforms.colour import flip
from boltbox.detector.data.transforms.letterbox import LazyImage, letterbox_sample
from boltbox.detector.model.boxes import area_xyxy, clip_xyxy, overlap_xyxy

MAX_COVERED = 0.30  # share of an existing box that a pasted one may cover


def mosaic(samples: Sequence[Sample], size: int, xc: int, yc: int, main: int = 0) -> Sample:
    """Four samples -> one of 2 size x 2 size pixels with the objects of all, boxes clipped to it.

    Args:
        samples: top left, top right, bottom left, bottom right; longer sides of at most `size`
            pixels.
        size: half a side.
        xc: x of the point where their corners meet.
        yc: y of that point.
        main: number of the sample whose other fields the mosaic gets; if its image is lazy, the
            mosaic is too.
    """
    side = 2 * size
    canvas = LazyImage((side, side), [])
    placed = []
    for i, sample in enumerate(samples):
        height, width = sample.size
        x1, x2, shift_x = (0, xc, xc - width) if i % 2 == 0 else (xc, side, xc)
        y1, y2, shift_y = (0, yc, yc - height) if i < 2 else (yc, side, yc)
        image = LazyImage.of(sample.image)
        moved = image.moved(1, (shift_x, shift_y), canvas.shape, within=(x1, y1, x2, y2))
        canvas.patches.extend(moved.patches)
        placed.append(sample.moved(None, (1, 1), (shift_x, shift_y)))
    boxes = np.concatenate([sample.boxes for sample in placed])
    polygons: Polygons = []
    for sample in placed:
        for parts in sample.polygons:
            polygons.append([part.clip(0, side) for part in parts])
    return samples[main].replace(
        image=canvas if isinstance(samples[main].image, LazyImage) else canvas.render(),
        boxes=clip_xyxy(boxes, side, side),
        classes=np.concatenate([sample.classes for sample in placed]),
        polygons=polygons,
        letterbox=None,
        truth=None,
    )


@dataclass
class Mosaic:
    """With probability p a mosaic with three random partners (Bochkovskiy et al. 2020, arXiv
    2004.10934), else the sample letterboxed to size x size pixels.

    Args:
        size: longest side of the samples in pixels.
        p: the probability.
    """

    size: int
    p: float

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample]
    ) -> Sample:
        if rng.random() >= self.p:
            return letterbox_sample(sample, (self.size, self.size), scaleup=True)
        yc = int(rng.uniform(self.size / 2, 3 * self.size / 2))
        xc = int(rng.uniform(self.size / 2, 3 * self.size / 2))
        samples = [sample, partner(), partner(), partner()]
        order = rng.permutation(4).tolist()
        return mosaic([samples[i] for i in order], self.size, xc, yc, main=order.index(0))


def copy_paste(sample: Sample, candidates: Sequence[int]) -> Sample:
    """Paste the mirror images of some objects (Ghiasi et al. 2020, arXiv 2012.07177) where they
    cover little of other boxes.

    Args:
        sample: its objects with polygons can be copied.
        candidates: numbers of the objects to try, in this order.
    """
    mirrored = flip(sample, 1)
    boxes = sample.boxes
    pasted = []
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
    return overlap_xyxy(box, boxes) / (area_xyxy(boxes) + 1e-7)


@dataclass
class CopyPaste:
    """`copy_paste` of random objects, if any has polygons.

    Args:
        p: share of the objects to try.
    """

    p: float

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        n = len(sample.boxes)
        if not self.p or not any(sample.polygons):
            return sample
        return copy_paste(sample, rng.permutation(n)[: round(self.p * n)].tolist())


def mixup(a: Sample, b: Sample, ratio: float) -> Sample:
    """Blend two samples of one size (Zhang et al. 2018, arXiv 1710.09412).

    Args:
        a: its other fields are kept.
        b: the other sample.
        ratio: weight of a's pixels; b's is 1 - ratio.
    """
    image = a.image * ratio + b.image * (1 - ratio)
    return a.replace(
        image=image.astype(np.uint8),
        boxes=np.concatenate((a.boxes, b.boxes)),
        classes=np.concatenate((a.classes, b.classes)),
        polygons=a.polygons + b.polygons,
        letterbox=None,
        truth=None,
    )


@dataclass
class MixUp:
    """With probability p `mixup` with another sample after the same steps, ratio from Beta(32, 32).

    Args:
        p: the probability.
    """

    p: float

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample]
    ) -> Sample:
        if rng.random() >= self.p:
            return sample
        return mixup(sample, partner(), float(rng.beta(32.0, 32.0)))
