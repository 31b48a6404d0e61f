"""Test-time augmentation: three passes over each image, whose rows are joined before
suppression."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

# images (B, 3, H, W) in 0..1 -> rows (B, R, 5 + C), as `Head.decode` gives them
Forward = Callable[[Tensor], Tensor]

PASSES = ((1.0, False), (0.83, True), (0.67, False))  # scale, whether mirrored
PADDING = 0.447  # grey of 0..1: about the mean of ImageNet's pixels


def augmented(
    forward: Forward,
    rows_per_level: Callable[[int, int], list[int] | None],
    stride: int,
    images: Tensor,
) -> Tensor:
    """Call `forward` three times and join the rows.

    The rows of the coarsest level at full scale and those of the finest level at the smallest scale
    are skipped: the other passes detect objects of these sizes better.

    Args:
        forward: Its rows are ordered by level, unless `rows_per_level` says otherwise.
        rows_per_level: See `Head.rows_per_level`.
        stride: Of the coarsest map; sides of the images are multiples of it.
        images: (B, 3, H, W) in 0..1.

    Returns:
        (B, R, 5 + C).
    """
    parts = []
    for k, (scale, mirrored) in enumerate(PASSES):
        inputs = scaled(images.flip(3) if mirrored else images, scale, stride)
        rows = forward(inputs)
        boxes = rows[..., :4] / scale
        if mirrored:
            boxes = torch.cat((images.shape[3] - boxes[..., :1], boxes[..., 1:]), -1)
        rows = torch.cat((boxes, rows[..., 4:]), -1)
        per_level = rows_per_level(*inputs.shape[2:])
        if per_level:
            first = per_level[0] if k == 2 else 0
            last = per_level[-1] if k == 0 else 0
            rows = rows[:, first : rows.shape[1] - last]
        parts.append(rows)
    return torch.cat(parts, 1)


def scaled(images: Tensor, scale: float, stride: int) -> Tensor:
    """Reduce images by bilinear interpolation, and pad right and below to multiples of the stride.

    Args:
        images: (B, 3, H, W) in 0..1.
        scale: At most 1.
        stride: In pixels.
    """
    if scale == 1:
        return images
    height, width = images.shape[2:]
    size = (int(height * scale), int(width * scale))
    small = interpolate(images, size, mode="bilinear", align_corners=False)
    right = math.ceil(width * scale / stride) * stride - size[1]
    below = math.ceil(height * scale / stride) * stride - size[0]
    return pad(small, (0, right, 0, below), value=PADDING)
