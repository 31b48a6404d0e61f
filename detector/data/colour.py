"""Changes of the pixels: hue, saturation, value; flips; any Albumentations transforms."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from detector.boxes import clip_xyxy
from detector.data.sample import Sample
from detector.errors import InputError, nearest


def adjust_hsv(image: np.ndarray, gains: Sequence[float]) -> np.ndarray:
    """(H, W, 3) uint8 RGB with hue (mod 180), saturation and value (limited at 255) multiplied by the three gains."""
    levels = np.arange(256)
    tables = (levels * gains[0] % 180, (levels * gains[1]).clip(0, 255), (levels * gains[2]).clip(0, 255))
    table = np.stack(tables, -1).astype(np.uint8).reshape(1, 256, 3)
    return cv2.cvtColor(cv2.LUT(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), table), cv2.COLOR_HSV2RGB)


class RandomHSV:
    """Multiply hue, saturation and value by 1 +- these fractions."""

    def __init__(self, hsv_h: float = 0.015, hsv_s: float = 0.7, hsv_v: float = 0.4) -> None:
        self.ranges = np.array((hsv_h, hsv_s, hsv_v))

    def __call__(self, sample: Sample, rng: np.random.Generator, draw: object = None) -> Sample:
        if not self.ranges.any():
            return sample
        return replace(sample, image=adjust_hsv(sample.image, 1 + rng.uniform(-1, 1, 3) * self.ranges))


class RandomFlip:
    """Mirror with probability p: left-right (axis 1) or upside down (axis 0)."""

    def __init__(self, axis: int, p: float) -> None:
        self.axis, self.p = axis, p

    def __call__(self, sample: Sample, rng: np.random.Generator, draw: object = None) -> Sample:
        return flip(sample, self.axis) if rng.random() < self.p else sample


def flip(sample: Sample, axis: int) -> Sample:
    """Mirrored sample: axis 1 left-right, axis 0 upside down."""
    side, low, high = sample.image.shape[axis], 1 - axis, 3 - axis
    boxes = sample.boxes.copy()
    boxes[:, low], boxes[:, high] = side - sample.boxes[:, high], side - sample.boxes[:, low]
    sign, shift = np.array(((-1, 1), (side, 0)) if axis == 1 else ((1, -1), (0, side)), np.float32)
    polygons = [[part * sign + shift for part in parts] for parts in sample.polygons]
    return replace(sample, image=np.flip(sample.image, axis), boxes=boxes, polygons=polygons, frame=None)


class Albumentations:
    """Transforms of the library albumentations, by name.

    Args:
        transforms: like [{"Blur": {"p": 0.01}}, {"CLAHE": {"p": 0.01}}]; boxes that they push out are dropped.

    Raises:
        InputError: unknown transform, or arguments that it does not take.
    """

    def __init__(self, transforms: Sequence[dict[str, dict[str, Any] | None]]) -> None:
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would ask the network for a newer version
        import albumentations

        steps = []
        for entry in transforms:
            for name, options in entry.items():
                kind = getattr(albumentations, name, None)
                if not (isinstance(kind, type) and issubclass(kind, albumentations.BasicTransform)):
                    known = [k for k, v in vars(albumentations).items() if isinstance(v, type)]
                    raise InputError(f"albumentations has no transform '{name}'; {nearest(name, known)}")
                try:
                    steps.append(kind(**(options or {})))
                except (TypeError, ValueError) as e:
                    raise InputError(f"albumentations transform {name}: {' '.join(str(e).split())}") from None
        boxes = albumentations.BboxParams(format="pascal_voc", label_fields=["classes"], clip=True)
        self.compose = albumentations.Compose(steps, bbox_params=boxes)

    def __call__(self, sample: Sample, rng: np.random.Generator, draw: object = None) -> Sample:
        height, width = sample.size
        boxes = clip_xyxy(sample.boxes, width, height)
        visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        self.compose.set_random_seed(int(rng.integers(2**31)))
        changed = self.compose(image=np.ascontiguousarray(sample.image), bboxes=boxes[visible], classes=sample.classes[visible])
        return Sample(
            changed["image"],
            np.asarray(changed["bboxes"], np.float32).reshape(-1, 4),
            np.asarray(changed["classes"], np.int64).reshape(-1),
            index=sample.index,
        )
