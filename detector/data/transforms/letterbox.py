"""Scale images to the network's size and pad them with grey. Nothing here is random.

A LazyImage has a geometry, but no pixels until it is rendered: then each image file is read and
resampled once, straight into its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np

from boltbox.detector.data.sample import Sample

GREY = 114  # of 255, in every channel, where there is no image
SLACK = 4  # pixels of the source in which to look for a point that lands on a whole pixel
Rectangle = tuple[float, float, float, float]  # x1, y1, x2, y2


class Patch(NamedTuple):
    """An image file in a lazy image. Its point (x, y) is shown at (x * gain + x0, y * gain + y0).
    Coordinates count from the corners of pixels, not from their centres.

    Attributes:
        read: reads the file: () -> (h, w, 3) uint8 RGB.
        visible: the rectangle of the lazy image in which the file is shown.
        gain: pixels of the lazy image per pixel of the file.
        x0: of the file's left edge.
        y0: of the file's upper edge.
    """

    read: Callable[[], np.ndarray]
    visible: Rectangle
    gain: float = 1.0
    x0: float = 0.0
    y0: float = 0.0

    def moved(self, gain: float, x: float, y: float, within: Rectangle) -> Patch:
        """The patch scaled, shifted by (x, y), then clipped to the rectangle `within`."""
        x1, y1, x2, y2 = self.visible
        visible = (
            max(x1 * gain + x, within[0]),
            max(y1 * gain + y, within[1]),
            min(x2 * gain + x, within[2]),
            min(y2 * gain + y, within[3]),
        )
        return Patch(self.read, visible, self.gain * gain, self.x0 * gain + x, self.y0 * gain + y)


class LazyImage(NamedTuple):
    """An image that is still to be rendered. Until then it replaces a sample's pixels.

    Attributes:
        shape: (height, width) in pixels.
        patches: its parts; where they overlap, the last one is shown.
    """

    shape: tuple[int, int]
    patches: list[Patch]

    @classmethod
    def of(cls, image: np.ndarray | LazyImage) -> LazyImage:
        """The same image; pixels (H, W, 3) uint8 RGB become one patch."""
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
        """The image scaled, then shifted, on a canvas.

        Args:
            gain: scale.
            shift: x, y in pixels of the canvas.
            shape: (height, width) of the canvas.
            within: the rectangle of the canvas in which it is shown; default: all.
        """
        if within is None:
            within = (0, 0, shape[1], shape[0])
        return LazyImage(shape, [patch.moved(gain, *shift, within) for patch in self.patches])

    def render(self) -> np.ndarray:
        """(H, W, 3) uint8 RGB, grey where there is no patch. Files that are not visible are not
        read.

        Patches are placed to about a tenth of a pixel; their edges are on whole pixels.
        """
        image = np.full((*self.shape, 3), GREY, np.uint8)
        for patch in self.patches:
            left, top, right, bottom = map(round, patch.visible)
            if left >= right or top >= bottom:
                continue
            pixels = patch.read()
            height, width = pixels.shape[:2]
            sx1, sx2, x1, x2 = _span(left, right, patch.gain, patch.x0, width)
            sy1, sy2, y1, y2 = _span(top, bottom, patch.gain, patch.y0, height)
            part = pixels[sy1:sy2, sx1:sx2]
            if part.shape[:2] != (y2 - y1, x2 - x1):
                part = cv2.resize(part, (x2 - x1, y2 - y1), interpolation=cv2.INTER_LINEAR)
            image[top:bottom, left:right] = part[top - y1 : bottom - y1, left - x1 : right - x1]
        return image


def _span(low: int, high: int, gain: float, shift: float, n: int) -> tuple[int, int, int, int]:
    """Along one side, n source pixels are resampled to output pixels by d = s * gain + shift.

    Returns:
        Source pixels s1 to s2 and output pixels d1 to d2, which include low to high. The bounds are
        chosen so that the equation holds as exactly as whole numbers can.
    """
    s1 = math.floor((low - shift) / gain)
    s1 = min(max(s1, 0), n - 1)
    s2 = math.ceil((high - shift) / gain)
    s2 = max(min(s2, n), s1 + 1)
    s1, d1 = _most_exact(range(s1, max(s1 - SLACK, 0) - 1, -1), gain, shift)
    s2, d2 = _most_exact(range(s2, min(s2 + SLACK, n) + 1), gain, shift)
    return s1, s2, min(d1, low), max(d2, high)


def _most_exact(candidates: range, gain: float, shift: float) -> tuple[int, int]:
    """The first s for which s * gain + shift is closest to an integer, and that integer."""

    def error(s: int) -> float:
        position = s * gain + shift
        return abs(position - round(position))

    s = min(candidates, key=error)
    return s, round(s * gain + shift)


def resize(image: np.ndarray, shape: tuple[int, int], smooth: bool) -> np.ndarray:
    """Scale an image.

    Args:
        image: (H, W, 3) uint8.
        shape: (height, width) of the output.
        smooth: average over the area when shrinking (validation); else bilinear (training, and
            whenever enlarging).
    """
    if image.shape[:2] == shape:
        return image
    shrinks = max(shape) < max(image.shape[:2])
    interpolation = cv2.INTER_AREA if smooth and shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, shape[::-1], interpolation=interpolation)


def longest_shape(shapes: np.ndarray, size: int) -> np.ndarray:
    """(..., 2) height and width in pixels of images scaled so that the longer side has `size`
    pixels; the shorter is rounded up."""
    sides = shapes * (size / shapes.max(-1, keepdims=True))
    # The product is rounded before the ceiling: 3 * (1 / 3) must not become the next integer.
    return np.ceil(sides.round(6)).astype(np.int64)


def resize_longest(sample: Sample, size: int) -> Sample:
    """An image with its objects scaled to its `longest_shape`."""
    height, width = sample.size
    new_height, new_width = longest_shape(np.array(sample.size), size).tolist()
    image = resize(sample.image, (new_height, new_width), smooth=True)
    return sample.moved(image, (new_width / width, new_height / height), (0, 0))


def letterbox(
    image: Any, shape: tuple[int, int], scaleup: bool = True
) -> tuple[Any, tuple[float, float], tuple[float, float]]:
    """Scale an image into a shape and centre it there on grey.

    Args:
        image: (H, W, 3) uint8, or a LazyImage.
        shape: (height, width) of the output.
        scaleup: allow enlarging.

    Returns:
        image: of `shape`.
        gain: of x and y.
        pad: left and top, in half pixels: the pixels are shifted by the padding rounded down.
    """
    height, width = image.shape[:2]
    r = min(shape[0] / height, shape[1] / width)
    if not scaleup:
        r = min(r, 1.0)
    new_width = max(round(width * r), 1)
    new_height = max(round(height * r), 1)
    pad_x = (shape[1] - new_width) / 2
    pad_y = (shape[0] - new_height) / 2
    left = round(pad_x - 0.1)
    top = round(pad_y - 0.1)
    if isinstance(image, LazyImage):
        return image.moved(r, (left, top), shape), (r, r), (pad_x, pad_y)
    canvas = np.full((*shape, 3), GREY, np.uint8)
    scaled = resize(image, (new_height, new_width), smooth=False)
    canvas[top : top + new_height, left : left + new_width] = scaled
    return canvas, (r, r), (pad_x, pad_y)


def letterbox_sample(sample: Sample, shape: tuple[int, int], scaleup: bool) -> Sample:
    """Letterbox an image with its objects; see `letterbox`."""
    image, gain, pad = letterbox(sample.image, shape, scaleup)
    return sample.moved(image, gain, pad)


def render(sample: Sample, rng: object = None, partner: object = None) -> Sample:
    """The step `resize`: the pixels of a lazy image, in the size that it has."""
    return sample.replace(image=sample.image.render())


@dataclass
class Letterbox:
    """A step of rectangular training: letterbox each image to a shape of its own.

    Args:
        shapes: (n, 2) height and width by the index of the image.
    """

    shapes: np.ndarray

    def __call__(self, sample: Sample, rng: object = None, partner: object = None) -> Sample:
        height, width = self.shapes[sample.index].tolist()
        return letterbox_sample(sample, (height, width), scaleup=True)


def round_up(size: int, stride: int) -> int:
    """The next image size that the network can take: a multiple of `stride`, at least twice it."""
    return max(math.ceil(size / stride), 2) * stride


def rectangular_batches(
    shapes: np.ndarray, size: int, batch_size: int, stride: int, pad: float, stable: bool = True
) -> tuple[list[list[int]], np.ndarray]:
    """Batches of images of similar aspect ratio, which need little padding.

    Args:
        shapes: (n, 2) height and width of every image.
        size: longer side in pixels.
        batch_size: images per batch.
        stride: sides become multiples of it.
        pad: extra, in strides.
        stable: sort images of one ratio by area. YOLOv5's sort is unstable, and its order differs
            between processors; which images share a batch moves the metrics of a small set by a few
            thousandths.

    Returns:
        batches: of image numbers, from wide to tall.
        shapes: (n, 2) height and width in pixels to letterbox each image to.
    """
    ratio = shapes[:, 0] / shapes[:, 1]
    order = np.lexsort((shapes.prod(1), ratio)) if stable else np.argsort(ratio)
    starts = range(0, len(order), batch_size)
    low = np.minimum.reduceat(ratio[order], starts)
    high = np.maximum.reduceat(ratio[order], starts)
    unit = np.column_stack((high, 1 / low)).clip(max=1)  # (batches, 2)
    batch_shapes = np.ceil(unit * size / stride + pad).astype(np.int64) * stride
    image_shapes = np.empty((len(order), 2), np.int64)
    image_shapes[order] = batch_shapes.repeat(batch_size, 0)[: len(order)]
    return [order[i : i + batch_size].tolist() for i in starts], image_shapes
