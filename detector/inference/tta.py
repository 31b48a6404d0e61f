"""Test-time augmentation: three passes over each image, whose rows are joined before
suppression."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from boltbox.detector.inference.rows import Rows

PASSES = ((1.0, False), (0.83, True), (0.67, False))  # scale, whether mirrored
GREY = 0.447  # of 1: about the mean of ImageNet's pixels


class TestTimeAugmentation:
    """A predictor that calls another one three times.

    The rows of the coarsest level at full scale, and those of the finest level at the smallest
    scale, are left out: the other passes see objects of these sizes better.

    Args:
        predictor: what is called; its rows are ordered by level, unless `rows_per_level` says
            otherwise.
        rows_per_level: see `Head.rows_per_level`; only the shares of the levels count.
        stride: of the coarsest map; sides of the images are multiples of it.
    """

    __test__ = False  # its name is not that of a pytest class

    def __init__(
        self,
        predictor: Rows,
        rows_per_level: Callable[[int, int], list[int] | None],
        stride: int,
    ) -> None:
        self.predictor, self.rows_per_level, self.stride = predictor, rows_per_level, stride

    def __call__(self, images: Tensor) -> Tensor:
        width = images.shape[3]
        parts = []
        for k, (scale, mirrored) in enumerate(PASSES):
            seen = scaled(images.flip(3) if mirrored else images, scale, self.stride)
            rows = self.predictor(seen)
            finest, coarsest = self._outer_rows(rows.shape[1], *seen.shape[2:])
            boxes = rows[..., :4] / scale
            if mirrored:
                boxes = torch.cat((width - boxes[..., :1], boxes[..., 1:]), -1)
            rows = torch.cat((boxes, rows[..., 4:]), -1)
            if k == 0:
                rows = rows[:, : rows.shape[1] - coarsest]
            elif k == len(PASSES) - 1:
                rows = rows[:, finest:]
            parts.append(rows)
        return torch.cat(parts, 1)

    def _outer_rows(self, total: int, height: int, width: int) -> tuple[int, int]:
        """How many of the rows are those of the finest level, and of the coarsest."""
        shares = self.rows_per_level(height, width)
        # an exported file may have another number of anchors than the network here
        if not shares or total % sum(shares):
            return 0, 0
        times = total // sum(shares)
        return shares[0] * times, shares[-1] * times


def scaled(images: Tensor, scale: float, stride: int) -> Tensor:
    """(B, 3, H, W) in 0..1, made smaller by bilinear interpolation, then grey right and below up to
    multiples of `stride`."""
    if scale == 1:
        return images
    height, width = images.shape[2:]
    small = interpolate(
        images, (int(height * scale), int(width * scale)), mode="bilinear", align_corners=False
    )
    to_height, to_width = (math.ceil(side * scale / stride) * stride for side in (height, width))
    return pad(small, (0, to_width - small.shape[3], 0, to_height - small.shape[2]), value=GREY)
