"""Test-time augmentation: three looks at each image, whose rows are joined before suppression."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

PASSES = ((1.0, False), (0.83, True), (0.67, False))  # scale, whether mirrored
GREY = 0.447  # of 1: about the mean of ImageNet's pixels


class TestTimeAugmentation:
    """A predictor that looks three times through another.

    The rows of the coarsest level at full scale, and those of the finest level at the smallest scale, are left out: the other
    passes see objects of these sizes better. Each level has a fourth of the rows of the one before it, whatever the rectangle.

    Args:
        look: float (B, 3, H, W) in 0..1 -> (B, R, 5 + C), rows ordered by level as `decode` gives them.
        levels: number of levels. stride: of the coarsest one; sides of the images are multiples of it.
    """

    __test__ = False  # its name is not that of a pytest class

    def __init__(self, look: Callable[[Tensor], Tensor], levels: int, stride: int) -> None:
        self.look, self.levels, self.stride = look, levels, stride

    def __call__(self, images: Tensor) -> Tensor:
        width = images.shape[3]
        parts = []
        for scale, mirrored in PASSES:
            rows = self.look(scaled(images.flip(3) if mirrored else images, scale, self.stride))
            boxes = rows[..., :4] / scale
            if mirrored:
                boxes = torch.cat((width - boxes[..., :1], boxes[..., 1:]), -1)
            parts.append(torch.cat((boxes, rows[..., 4:]), -1))
        total = sum(4**k for k in range(self.levels))
        first, last = parts[0].shape[1] // total, parts[-1].shape[1] // total * 4 ** (self.levels - 1)
        parts[0], parts[-1] = parts[0][:, : parts[0].shape[1] - first], parts[-1][:, last:]
        return torch.cat(parts, 1)


def scaled(images: Tensor, scale: float, stride: int) -> Tensor:
    """(B, 3, H, W) in 0..1, made smaller by bilinear interpolation, then grey right and below up to multiples of `stride`."""
    if scale == 1:
        return images
    height, width = images.shape[2:]
    small = interpolate(images, (int(height * scale), int(width * scale)), mode="bilinear", align_corners=False)
    to_height, to_width = (math.ceil(side * scale / stride) * stride for side in (height, width))
    return pad(small, (0, to_width - small.shape[3], 0, to_height - small.shape[2]), value=GREY)
