"""Changes of the pixels: hue, saturation, value; flips; any Albumentations transforms."""

import os
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from boltbox.detector.data.sample import Sample
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.errors import InputError, nearest

LEVELS = np.arange(256)[:, None]  # all values of a uint8 channel


def adjust_hsv(image: np.ndarray, gains: Sequence[float]) -> np.ndarray:
    """Multiply hue (mod 180), saturation and value (at most 255) by the three gains.

    Args:
        image: (H, W, 3) uint8 RGB.
        gains: of hue, saturation, value.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    return cv2.cvtColor(_multiply(hsv, gains), cv2.COLOR_HSV2RGB)


def _multiply(hsv: np.ndarray, gains: Sequence[float]) -> np.ndarray:
    """Each channel times its gain, rounded down. Hues of 180 to 255 stand for those from 0."""
    product = LEVELS * np.array(gains)  # (256, 3) of each level
    rounded = np.floor(product)
    # cv2.transform is faster than a table. It multiplies in float32 and rounds to the nearest, so
    # it gives the same unless a product is just below an integer.
    if product[179, 0] < 256 and (np.floor(product + 2e-4) == rounded).all():
        offset = np.full((3, 1), -0.4999)
        return cv2.transform(hsv, np.hstack((np.diag(gains), offset)))
    rounded[:, 0] %= 180
    table = np.minimum(rounded, 255).astype(np.uint8)
    return cv2.LUT(hsv, table.reshape(1, 256, 3))


class RandomHSV:
    """Multiply hue, saturation and value by random gains.

    Args:
        hsv_h: the gain of the hue is 1 +- this.
        hsv_s: likewise, of the saturation.
        hsv_v: likewise, of the value.
    """

    def __init__(self, hsv_h: float, hsv_s: float, hsv_v: float) -> None:
        self.ranges = np.array((hsv_h, hsv_s, hsv_v))

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        if not self.ranges.any():
            return sample
        gains = 1 + rng.uniform(-1, 1, 3) * self.ranges
        return sample.replace(image=adjust_hsv(sample.image, gains))


@dataclass
class RandomFlip:
    """Mirror with probability p.

    Args:
        axis: 1: left-right; 0: upside down.
        p: the probability.
    """

    axis: int
    p: float

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        return flip(sample, self.axis) if rng.random() < self.p else sample


def flip(sample: Sample, axis: int) -> Sample:
    """The mirrored sample: left-right (axis 1) or upside down (axis 0)."""
    height, width = sample.size
    image = cv2.flip(sample.image, axis)
    if axis == 1:
        mirrored = sample.moved(image, (-1, 1), (width, 0))
        corners = [2, 1, 0, 3]
    else:
        mirrored = sample.moved(image, (1, -1), (0, height))
        corners = [0, 3, 2, 1]
    return mirrored.replace(boxes=mirrored.boxes[:, corners], letterbox=None)


class Albumentations:
    """Transforms of the Albumentations library, by name.

    Args:
        transforms: like [{"Blur": {"p": 0.01}}, {"OneOf": {"transforms": [{"CLAHE": {}}, {"ToGray":
            {}}], "p": 0.1}}]. Boxes that they push out of the image are dropped.

    Raises:
        InputError: unknown transform, or arguments that it does not take. When it is called: the
            image has another size or type.
    """

    def __init__(self, transforms: Sequence[dict[str, Any]]) -> None:
        # its import would ask the network for a newer version
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations as library

        boxes = library.BboxParams(format="pascal_voc", label_fields=["classes"], clip=True)
        try:
            with warnings.catch_warnings():  # the library only warns of an unknown option
                warnings.filterwarnings("error", message=".*not valid for transform")
                steps = _build(library, transforms)
        except (AttributeError, TypeError, ValueError, UserWarning) as e:
            reason = " ".join(str(e).split())
            raise InputError(f"data.augment.albumentations {transforms}: {reason}") from None
        self._compose = library.Compose(steps, bbox_params=boxes)

    def __call__(self, sample: Sample, rng: np.random.Generator, partner: object = None) -> Sample:
        height, width = sample.size
        boxes = clip_xyxy(sample.boxes, width, height)
        visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        # one seed for all, as the library has it, would make every transform decide alike
        self._compose.set_random_state(rng, random.Random(int(rng.integers(2**63))))
        output = self._compose(
            image=np.ascontiguousarray(sample.image),
            bboxes=boxes[visible],
            classes=sample.classes[visible],
        )
        image = output["image"]
        if sorted(image.shape) != sorted(sample.image.shape) or image.dtype != np.uint8:
            raise InputError(
                f"data.augment.albumentations: {height}x{width} pixels of uint8 have become"
                f" {image.shape[0]}x{image.shape[1]} of {image.dtype}; leave out transforms that"
                " crop, resize or normalise"
            )
        return sample.replace(
            image=image,
            boxes=np.asarray(output["bboxes"], np.float32).reshape(-1, 4),
            classes=np.asarray(output["classes"], np.int64).reshape(-1),
            polygons=[],
            letterbox=None,
        )


def _build(library: Any, configs: Sequence[dict[str, Any]]) -> list[Any]:
    """The transforms; a group like OneOf lists its own under `transforms`."""
    steps = []
    for config in configs:
        for name, options in config.items():
            kind: Any = getattr(library, name, None)
            if not hasattr(kind, "set_random_state"):
                raise InputError(f"there is no '{name}'; {nearest(name, dir(library))}")
            options = dict(options or {})
            if "transforms" in options:
                options["transforms"] = _build(library, options["transforms"])
            steps.append(kind(**options))
    return steps
