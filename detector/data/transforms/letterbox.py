"""Bring images to the network's size: scale, then pad with grey. Not random.

Lazy images have a geometry, and their pixels are read when they are rendered: each file's are
resampled once, straight into their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np

from boltbox.detector.data.sample import Sample

GREY = 114  # of 255, in every channel, where there is no image
SLACK = 4  # pixels of the source in which to look for a point that lands on a whole pixel
Rectangle = tuple[float, float, float, float]  # x1, y1, x2, y2


class Patch(NamedTuple):
    """A file's image within a lazy one: its point (x, y) goes to (x * gain + x0, y * gain + y0),
    and what falls into the rectangle `seen` is shown. Coordinates count from the corners of pixels,
    not from their centres. read(): its pixels (h, w, 3) uint8 RGB."""

    read: Callable[[], np.ndarray]
    seen: Rectangle
    gain: float = 1.0
    x0: float = 0.0
    y0: float = 0.0

    def moved(self, gain: float, x: float, y: float, within: Rectangle) -> Patch:
        """With all that is around it scaled and shifted, seen through the rectangle `within`."""
        x1, y1, x2, y2 = self.seen
        low = max(x1 * gain + x, within[0]), max(y1 * gain + y, within[1])
        high = min(x2 * gain + x, within[2]), min(y2 * gain + y, within[3])
        x0, y0 = self.x0 * gain + x, self.y0 * gain + y
        return Patch(self.read, (*low, *high), self.gain * gain, x0, y0)


class LazyImage(NamedTuple):
    """An image of `shape` (height, width) in pixels that is still to be rendered. It takes the
    place of a sample's pixels until then."""

    shape: tuple[int, int]
    patches: list[Patch]

    @classmethod
    def of(cls, image: np.ndarray | LazyImage) -> LazyImage:
        """The same image; pixels (H, W, 3) uint8 RGB as one patch."""
        if isinstance(image, LazyImage):
            return image
        height, width = image.shape[:2]
        return cls((height, width), [Patch(lambda: image, (0, 0, width, height))])

    def moved(
        self,
        gain: float,
        shift: tuple[float, float],
        shape: tuple[int, int],
        within: Rectangle | None = None,
    ) -> LazyImage:
        """Scaled, then shifted, on an image of `shape`, of which it covers `within`, or all."""
        seen = within or (0, 0, shape[1], shape[0])
        return LazyImage(shape, [patch.moved(gain, *shift, seen) for patch in self.patches])

    def render(self) -> np.ndarray:
        """(H, W, 3) uint8 RGB, grey where there is no patch. Patches that nothing is seen of are
        not read.

        The geometry is that of the patches to about a tenth of a pixel; their edges fall on whole
        pixels.
        """
        image = np.full((*self.shape, 3), GREY, np.uint8)
        for patch in self.patches:
            left, top, right, bottom = map(round, patch.seen)
            if left < right and top < bottom:
                pixels = patch.read()
                sx1, sx2, x1, x2 = _span(left, right, patch.gain, patch.x0, pixels.shape[1])
                sy1, sy2, y1, y2 = _span(top, bottom, patch.gain, patch.y0, pixels.shape[0])
                part = pixels[sy1:sy2, sx1:sx2]
                if part.shape[:2] != (y2 - y1, x2 - x1):
                    part = cv2.resize(part, (x2 - x1, y2 - y1), interpolation=cv2.INTER_LINEAR)
                image[top:bottom, left:right] = part[top - y1 : bottom - y1, left - x1 : right - x1]
        return image


def _span(low: int, high: int, gain: float, shift: float, n: int) -> tuple[int, int, int, int]:
    """Source pixels s1..s2 of n and output pixels d1..d2 that belong together under d = s * gain +
    shift as exactly as whole numbers can, where d1..d2 holds low..high."""

    s1 = min(max(math.floor((low - shift) / gain), 0), n - 1)
    s2 = max(min(math.ceil((high - shift) / gain), n), s1 + 1)
    s1, d1 = _roundest(range(s1, max(s1 - SLACK, 0) - 1, -1), gain, shift)
    s2, d2 = _roundest(range(s2, min(s2 + SLACK, n) + 1), gain, shift)
    return s1, s2, min(d1, low), max(d2, high)


def _roundest(candidates: range, gain: float, shift: float) -> tuple[int, int]:
    """The first s for which d = s * gain + shift is closest to a whole number, and that number."""
    places = {s: s * gain + shift for s in candidates}
    s = min(places, key=lambda s: abs(places[s] - round(places[s])))
    return s, round(places[s])


def resize(image: np.ndarray, shape: tuple[int, int], smooth: bool) -> np.ndarray:
    """(H, W, 3) uint8 scaled to `shape` (height, width).

    Args:
        smooth: average over the area when shrinking (validation); else bilinear (training, and
            whenever enlarging).
    """
    if image.shape[:2] == shape:
        return image
    area = smooth and max(shape) < max(image.shape[:2])
    way = cv2.INTER_AREA if area else cv2.INTER_LINEAR
    return cv2.resize(image, shape[::-1], interpolation=way)


def longest_shape(height: int, width: int, size: int) -> tuple[int, int]:
    """(height, width) in pixels of an image scaled so that the longer side has `size` pixels; the
    shorter is rounded up."""
    r = size / max(height, width)
    # The product is rounded before the ceiling: 3 * (1 / 3) must not become the next integer.
    return math.ceil(round(height * r, 6)), math.ceil(round(width * r, 6))


def resize_longest(sample: Sample, size: int) -> Sample:
    """An image with its objects scaled to its `longest_shape`."""
    height, width = sample.size
    shape = longest_shape(height, width, size)
    image = resize(sample.image, shape, smooth=True)
    return sample.moved(image, (shape[1] / width, shape[0] / height), (0, 0))


def letterbox(
    image: Any, shape: tuple[int, int], scaleup: bool = True
) -> tuple[Any, tuple[float, float], tuple[float, float]]:
    """Scale (H, W, 3), or a LazyImage, into `shape` (height, width) and centre it there on grey.

    Args:
        scaleup: allow enlarging.

    Returns:
        image; (gain_x, gain_y); padding left and top, in half pixels: the pixels are shifted by the
            padding rounded down.
    """
    height, width = image.shape[:2]
    r = min(shape[0] / height, shape[1] / width)
    r = r if scaleup else min(r, 1.0)
    new_width, new_height = round(width * r), round(height * r)
    pad_x, pad_y = (shape[1] - new_width) / 2, (shape[0] - new_height) / 2
    left, top = round(pad_x - 0.1), round(pad_y - 0.1)
    if isinstance(image, LazyImage):
        return image.moved(r, (left, top), shape), (r, r), (pad_x, pad_y)
    canvas = np.full((*shape, 3), GREY, np.uint8)
    scaled = resize(image, (new_height, new_width), smooth=False)
    canvas[top : top + new_height, left : left + new_width] = scaled
    return canvas, (r, r), (pad_x, pad_y)


def letterbox_sample(sample: Sample, shape: tuple[int, int], scaleup: bool) -> Sample:
    """`letterbox` for an image with its objects and the way back to its file."""
    image, gain, pad = letterbox(sample.image, shape, scaleup)
    return sample.moved(image, gain, pad)


class Letterbox:
    """Into the (height, width) that `shapes` (n, 2) gives the image of this index; see
    `letterbox`."""

    def __init__(self, shapes: np.ndarray) -> None:
        self.shapes = shapes

    def __call__(self, sample: Sample, rng: object = None, partner: object = None) -> Sample:
        height, width = self.shapes[sample.index].tolist()
        return letterbox_sample(sample, (height, width), scaleup=True)


def round_up(size: int, stride: int) -> int:
    """An image size that the network can take: the next multiple of `stride`, at least two of
    them."""
    return max(math.ceil(size / stride), 2) * stride
