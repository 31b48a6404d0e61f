"""Mosaic: four images around a random point of a canvas twice the size (Bochkovskiy et al. 2020,
arXiv 2004.10934)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.lazy_image import GREY, LazyImage
from boltbox.detector.data.transforms.letterbox import letterbox_sample
from boltbox.detector.model.boxes import clip_xyxy

Rectangle = tuple[int, int, int, int]  # x1, y1, x2, y2


def patch_rectangles(
    shapes: Sequence[tuple[int, int]], size: int, xc: int, yc: int
) -> tuple[list[Rectangle], list[Rectangle]]:
    """Where each of four images (height, width) goes: its rectangle on the canvas of 2 size x 2
    size pixels, and the part of the image that fits there. Their inner corners meet at (xc, yc):
    top left, top right, bottom left, bottom right."""
    canvas, source = [], []
    for i, (h, w) in enumerate(shapes):
        left, top = i % 2 == 0, i < 2
        x1, x2 = (max(xc - w, 0), xc) if left else (xc, min(xc + w, 2 * size))
        y1, y2 = (max(yc - h, 0), yc) if top else (yc, min(yc + h, 2 * size))
        sx, sy = (w - (x2 - x1) if left else 0), (h - (y2 - y1) if top else 0)
        canvas.append((x1, y1, x2, y2))
        source.append((sx, sy, sx + x2 - x1, sy + y2 - y1))
    return canvas, source


def mosaic(samples: Sequence[Sample], size: int, xc: int, yc: int, main: int = 0) -> Sample:
    """Four samples whose longer sides are at most `size` pixels -> one of 2 size x 2 size, boxes
    clipped to it.

    Image and objects are those of all four; there is no way back to a file; all else is that of
    samples[main].
    """
    rectangles = patch_rectangles([sample.size for sample in samples], size, xc, yc)
    image = np.full((2 * size, 2 * size, 3), GREY, np.uint8)
    boxes, polygons, patches = [], [], []
    outlined = any(sample.polygons for sample in samples)
    for sample, (x1, y1, x2, y2), (sx1, sy1, sx2, sy2) in zip(samples, *rectangles, strict=True):
        x, y = x1 - sx1, y1 - sy1
        if isinstance(sample.image, LazyImage):
            patches += sample.image.moved((1, 1), (x, y), (size, size), (x1, y1, x2, y2)).patches
        else:
            image[y1:y2, x1:x2] = sample.image[sy1:sy2, sx1:sx2]
        shift = np.array((x, y) * 2, np.float32)
        boxes.append(sample.boxes + shift)
        if outlined:
            polygons += [
                [(part + shift[:2]).clip(0, 2 * size) for part in parts] for parts in sample.parts()
            ]
    canvas: Any = LazyImage((2 * size, 2 * size), patches) if patches else image
    return samples[main].replace(
        image=canvas,
        boxes=clip_xyxy(np.concatenate(boxes), 2 * size, 2 * size),
        classes=np.concatenate([sample.classes for sample in samples]),
        polygons=polygons,
        letterbox=None,
        truth=None,
    )


class Mosaic:
    """With probability p a mosaic with three random partners, else the sample letterboxed to size x
    size pixels."""

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
