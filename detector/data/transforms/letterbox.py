"""Bring an image to the network's size: scale, then pad with grey. Not random."""

import math
from typing import Any

import cv2
import numpy as np

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.lazy_image import GREY, LazyImage


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


def resize_longest(sample: Sample, size: int, smooth: bool) -> Sample:
    """An image with its objects scaled to its `longest_shape`; smooth: see `resize`."""
    height, width = sample.size
    shape = longest_shape(height, width, size)
    image = resize(sample.image, shape, smooth)
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
    height, width = image.size if isinstance(image, LazyImage) else image.shape[:2]
    r = min(shape[0] / height, shape[1] / width)
    r = r if scaleup else min(r, 1.0)
    new_width, new_height = round(width * r), round(height * r)
    pad_x, pad_y = (shape[1] - new_width) / 2, (shape[0] - new_height) / 2
    (left, right), (top, bottom) = ((round(pad - 0.1), round(pad + 0.1)) for pad in (pad_x, pad_y))
    if isinstance(image, LazyImage):
        return image.moved(r, (left, top), shape), (r, r), (pad_x, pad_y)
    if (height, width) != (new_height, new_width):
        image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    if pad_x or pad_y:
        grey = (GREY,) * 3
        image = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=grey)
    return image, (r, r), (pad_x, pad_y)


def letterbox_sample(sample: Sample, shape: tuple[int, int], scaleup: bool) -> Sample:
    """`letterbox` for an image with its objects and the way back to its file."""
    image, gain, pad = letterbox(sample.image, shape, scaleup)
    return sample.moved(image, gain, pad)


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
    starts = np.flatnonzero(np.diff(batch, prepend=-1))
    low, high = np.minimum.reduceat(ratio, starts), np.maximum.reduceat(ratio, starts)
    unit = np.column_stack((high, 1 / low)).clip(max=1)
    return np.ceil(unit * size / stride + pad).astype(np.int64) * stride


def round_up(size: int, stride: int) -> int:
    """An image size that the network can take: the next multiple of `stride`, at least two of
    them."""
    return max(math.ceil(size / stride), 2) * stride
