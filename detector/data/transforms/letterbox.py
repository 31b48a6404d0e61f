"""Bring an image to the network's size: scale, then pad with grey. Not random."""

import math
from typing import Any

import cv2
import numpy as np

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.lazy_image import GREY, LazyImage


def resize_longest(sample: Sample, size: int, smooth: bool) -> Sample:
    """Scale so that the longer side has `size` pixels; the shorter is rounded up.

    Args:
        smooth: average over the area when shrinking (validation); else bilinear (training, and
            whenever enlarging).
    """
    height, width = sample.size
    r = size / max(height, width)
    if r == 1:
        return sample
    new_height, new_width = longest_shape(height, width, size)
    interpolation = cv2.INTER_AREA if smooth and r < 1 else cv2.INTER_LINEAR
    image = cv2.resize(sample.image, (new_width, new_height), interpolation=interpolation)
    return moved(sample, image, (new_width / width, new_height / height), (0, 0))


def longest_shape(height: int, width: int, size: int) -> tuple[int, int]:
    """(height, width) in pixels that `resize_longest` makes of an image."""
    r = size / max(height, width)
    # The product is rounded before the ceiling: 3 * (1 / 3) must not become the next integer.
    return math.ceil(round(height * r, 6)), math.ceil(round(width * r, 6))


def resized(sample: Sample, size: tuple[int, int]) -> Sample:
    """The sample, whose coordinates are those of an image of `size` (height, width), with those of
    its own, scaled image."""
    (height, width), (new_height, new_width) = size, sample.size
    return moved(sample, sample.image, (new_width / width, new_height / height), (0, 0))


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
    (left, right), (top, bottom) = ((round(pad - 0.1), round(pad + 0.1)) for pad in (pad_x, pad_y))
    if isinstance(image, LazyImage):
        return image.moved((r, r), (left, top), shape), (r, r), (pad_x, pad_y)
    if (height, width) != (new_height, new_width):
        image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    if pad_x or pad_y:
        grey = (GREY,) * 3
        image = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=grey)
    return image, (r, r), (pad_x, pad_y)


def letterbox_sample(sample: Sample, shape: tuple[int, int], scaleup: bool) -> Sample:
    """`letterbox` for an image with its objects and the way back to its file."""
    image, gain, pad = letterbox(sample.image, shape, scaleup)
    return moved(sample, image, gain, pad)


def moved(
    sample: Sample, image: np.ndarray, gain: tuple[float, float], pad: tuple[float, float]
) -> Sample:
    """The sample with another image, to which its coordinates go by x * gain + pad."""
    scale, shift = np.array(gain * 2, np.float32), np.array(pad * 2, np.float32)
    return sample.replace(
        image=image,
        boxes=sample.boxes * scale + shift,
        polygons=[[part * scale[:2] + shift[:2] for part in parts] for parts in sample.polygons],
        letterbox=sample.letterbox.moved(*gain, *pad) if sample.letterbox else None,
    )


class Resize:
    """See `resize_longest`. lazy: images are rendered after the warp (lazy_image.py), and JPEG
    files may be decoded at 1/2, 1/4 or 1/8 of their size if that is not too small."""

    def __init__(self, size: int, smooth: bool, lazy: bool = False) -> None:
        self.size, self.smooth, self.lazy = size, smooth, lazy

    def __call__(self, sample: Sample, rng: object = None, partner: object = None) -> Sample:
        return resize_longest(sample, self.size, self.smooth)


class Letterbox:
    """Into the (height, width) that `shapes` (n, 2) gives the image of this index; see
    `letterbox`."""

    def __init__(self, shapes: np.ndarray, scaleup: bool) -> None:
        self.shapes, self.scaleup = shapes, scaleup

    def __call__(self, sample: Sample, rng: object = None, partner: object = None) -> Sample:
        height, width = self.shapes[sample.index].tolist()
        return letterbox_sample(sample, (height, width), self.scaleup)


def batch_shapes(
    shapes: np.ndarray, batch: np.ndarray, size: int, stride: int, pad: float
) -> np.ndarray:
    """The least rectangle for each batch of images of like aspect ratio.

    Args:
        shapes: (n, 2) height and width of every image, sorted by height / width.
        batch: (n,) number of the batch that each belongs to, ascending from 0.
        size: longer side in pixels; stride: sides become multiples of it; pad: extra, in strides.

    Returns:
        (batches, 2) int64 height and width in pixels.
    """
    ratio = shapes[:, 0] / shapes[:, 1]
    unit = np.ones((batch[-1] + 1, 2))
    for b in range(len(unit)):
        low, high = ratio[batch == b].min(), ratio[batch == b].max()
        if high < 1:
            unit[b] = high, 1
        elif low > 1:
            unit[b] = 1, 1 / low
    return np.ceil(unit * size / stride + pad).astype(np.int64) * stride


def round_up(size: int, stride: int) -> int:
    """An image size that the network can take: the next multiple of `stride`, at least two of
    them."""
    return max(math.ceil(size / stride), 2) * stride
