"""What is left to do with a batch on the device."""

import math

import numpy as np
from torch import Tensor
from torch.nn.functional import interpolate

from boltbox.detector.data.sample import Batch


def finish_on_device(batch: Batch) -> Batch:
    """Images uint8 -> float in 0..1. Tiles stay uint8: as floats they would not all find room."""
    return batch if batch.windows is not None else batch._replace(images=to_floats(batch.images))


def to_floats(images: Tensor) -> Tensor:
    """(B, 3, H, W) uint8 -> float32 in 0..1, on the device where they are."""
    return images.float() / 255


def rescaled(images: Tensor, size: int, stride: int, seed: int, iteration: int) -> Tensor:
    """(B, 3, H, W) resized so that the longer side is 50 to 150 % of `size` pixels, by seed and
    iteration alone; sides are multiples of `stride`."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, 2, iteration)))
    size = max(int(rng.integers(size // 2, size * 3 // 2 + stride)) // stride, 1) * stride
    longest = max(images.shape[2:])
    sides = [math.ceil(s * size / longest / stride) * stride for s in images.shape[2:]]
    return interpolate(images, sides, mode="bilinear", align_corners=False)
