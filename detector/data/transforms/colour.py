"""Changes of the pixels: hue, saturation, value; flips; any Albumentations transforms."""

import os
import random
import warnings
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from boltbox.detector.data.sample import Sample
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.errors import InputError, nearest

LEVELS = np.arange(256)[:, None]


def adjust_hsv(image: np.ndarray, gains: Sequence[float]) -> np.ndarray:
    """(H, W, 3) uint8 RGB with hue (mod 180), saturation and value (limited at 255) multiplied by
    the three gains."""
    return cv2.cvtColor(
        _multiplied(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), gains), cv2.COLOR_HSV2RGB
    )


def _multiplied(hsv: np.ndarray, gains: Sequence[float]) -> np.ndarray:
    """Each channel times its gain, rounded down. A hue of 180 to 255 stands for one from 0 on."""
    product = LEVELS * np.array(gains)  # (256, 3) of each level
    whole = np.floor(product)
    # In float32, and to the nearest whole number: the same unless a product is just below one.
    if product[179, 0] < 256 and (np.floor(product + 2e-4) == whole).all():
        (h, s, v), down = gains, -0.4999
        return cv2.transform(hsv, np.array(((h, 0, 0, down), (0, s, 0, down), (0, 0, v, down))))
    whole[:, 0] %= 180
    return cv2.LUT(hsv, np.minimum(whole, 255).astype(np.uint8).reshape(1, 256, 3))


class RandomHSV:
    """Multiply hue, saturation and value by 1 +- these fractions."""

    def __init__(self, hsv_h: float = 0.015, hsv_s: float = 0.7, hsv_v: float = 0.4) -> None:
        self.ranges = np.array((hsv_h, hsv_s, hsv_v))

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        if not self.ranges.any():
            return sample
        gains = 1 + rng.uniform(-1, 1, 3) * self.ranges
        return sample.replace(image=adjust_hsv(sample.image, gains))


class RandomFlip:
    """Mirror with probability p: left-right (axis 1) or upside down (axis 0)."""

    def __init__(self, axis: int, p: float) -> None:
        self.axis, self.p = axis, p

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        return flip(sample, self.axis) if rng.random() < self.p else sample


def flip(sample: Sample, axis: int) -> Sample:
    """Mirrored sample: axis 1 left-right, axis 0 upside down."""
    height, width = sample.size
    gain, shift = ((-1, 1), (width, 0)) if axis == 1 else ((1, -1), (0, height))
    mirrored = sample.moved(cv2.flip(sample.image, axis), gain, shift)
    corners = [2, 1, 0, 3] if axis == 1 else [0, 3, 2, 1]
    return mirrored.replace(boxes=mirrored.boxes[:, corners], letterbox=None)


class Albumentations:
    """Transforms of the library albumentations, by name.

    Args:
        transforms: like [{"Blur": {"p": 0.01}}, {"OneOf": {"transforms": [{"CLAHE": {}}, {"ToGray":
            {}}], "p": 0.1}}]; boxes that they push out are dropped.

    Raises:
        InputError: unknown transform, or arguments that it does not take.
    """

    def __init__(self, transforms: Sequence[dict[str, Any]]) -> None:
        # its import would ask the network for a newer version
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations as library

        kinds = library.BasicTransform | library.BaseCompose
        self._known = {
            name: kind
            for name, kind in vars(library).items()
            if isinstance(kind, type) and issubclass(kind, kinds)
        }
        boxes = library.BboxParams(format="pascal_voc", label_fields=["classes"], clip=True)
        try:
            with warnings.catch_warnings():  # that library only warns of an unknown option
                warnings.filterwarnings("error", message=".*not valid for transform")
                steps = self._build(transforms)
        except (AttributeError, TypeError, ValueError, UserWarning) as e:
            why = " ".join(str(e).split())
            raise InputError(f"data.augment.albumentations {transforms}: {why}") from None
        self._compose = library.Compose(steps, bbox_params=boxes)

    def _build(self, entries: Sequence[dict[str, Any]]) -> list[Any]:
        """Transforms from their descriptions; a group like OneOf lists its own under
        `transforms`."""
        steps = []
        for name, given in (item for entry in entries for item in entry.items()):
            if name not in self._known:
                raise InputError(f"there is no '{name}'; {nearest(name, self._known)}")
            options = dict(given or {})
            if "transforms" in options:
                options["transforms"] = self._build(options["transforms"])
            steps.append(self._known[name](**options))
        return steps

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        height, width = sample.size
        boxes = clip_xyxy(sample.boxes, width, height)
        visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        # one seed for all, as that library has it, would make every transform decide alike
        self._compose.set_random_state(rng, random.Random(int(rng.integers(2**63))))
        changed = self._compose(
            image=np.ascontiguousarray(sample.image),
            bboxes=boxes[visible],
            classes=sample.classes[visible],
        )
        image = changed["image"]
        if sorted(image.shape) != sorted(sample.image.shape) or image.dtype != np.uint8:
            raise InputError(
                f"data.augment.albumentations: {height}x{width} pixels of uint8 have become"
                f" {image.shape[0]}x{image.shape[1]} of {image.dtype}; leave out transforms that"
                " crop, resize or normalise"
            )
        return sample.replace(
            image=image,
            boxes=np.asarray(changed["bboxes"], np.float32).reshape(-1, 4),
            classes=np.asarray(changed["classes"], np.int64).reshape(-1),
            polygons=[],
            letterbox=None,
        )
