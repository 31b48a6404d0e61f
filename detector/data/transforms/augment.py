"""The order of the augmentation, under the names that YOLOv5's hyper-parameter files use."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.colour import Albumentations, RandomFlip, RandomHSV
from boltbox.detector.data.transforms.letterbox import Letterbox
from boltbox.detector.data.transforms.mixing import CopyPaste, MixUp, Mosaic
from boltbox.detector.data.transforms.perspective import RandomPerspective
from boltbox.detector.data.transforms.transform import OwnTransform, Transform
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.ranges import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt

if TYPE_CHECKING:
    AnyTransform = Transform
else:
    # of a protocol the parser would want every annotation repeated; OwnTransform checks the call
    AnyTransform = Callable

PLACES = (
    "resize",
    "mosaic",
    "copy_paste",
    "perspective",
    "mixup",
    "albumentations",
    "hsv",
    "flipud",
    "fliplr",
)
LAZY_PLACES = PLACES[:3]  # where a lazy image has no pixels yet: `perspective` renders them


@dataclass
class Augment:
    """Strengths of the training augmentation; names, ranges and defaults are those of YOLOv5's
    hyper-parameter files.

    Args:
        hsv_h: Hue is multiplied by 1 +- this.
        hsv_s: Saturation is multiplied by 1 +- this.
        hsv_v: Value is multiplied by 1 +- this.
        degrees: Rotation by +- this many degrees.
        translate: Translation by +- this fraction of the image.
        scale: Scaling by 1 +- this.
        shear: Shear by +- this many degrees.
        perspective: Perspective by +- this (0 to 0.001).
        flipud: Probability of an upside-down flip.
        fliplr: Probability of a left-right flip.
        mosaic: Probability of a four-image mosaic.
        close_mosaic: So many epochs at the end without mosaic and MixUp.
        mixup: Probability of blending with another finished sample.
        copy_paste: Share of the objects that are pasted again, mirrored; needs polygon labels.
        albumentations: Transforms of that library, like [{"Blur": {"p": 0.01}}], before the change
            of colour.
        after: Transforms of your own by the step that they come after (resize, mosaic, copy_paste,
            perspective, mixup, albumentations, hsv, flipud or fliplr), like {mosaic: [{class_path:
            mine.Invert, init_args: {p: 0.5}}]}; docs/augmentation.md.
    """

    hsv_h: ClosedUnitInterval = 0.015
    hsv_s: ClosedUnitInterval = 0.7
    hsv_v: ClosedUnitInterval = 0.4
    degrees: NonNegativeFloat = 0.0
    translate: ClosedUnitInterval = 0.1
    scale: ClosedUnitInterval = 0.5
    shear: NonNegativeFloat = 0.0
    perspective: ClosedUnitInterval = 0.0
    flipud: ClosedUnitInterval = 0.0
    fliplr: ClosedUnitInterval = 0.5
    mosaic: ClosedUnitInterval = 1.0
    close_mosaic: NonNegativeInt = 0
    mixup: ClosedUnitInterval = 0.0
    copy_paste: ClosedUnitInterval = 0.0
    albumentations: list[dict[str, Any]] = field(default_factory=list)
    after: dict[str, list[AnyTransform]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, transforms in self.after.items():
            if place not in PLACES:
                raise InputError(
                    f"data.augment.after.{place}: there is no such step; {nearest(place, PLACES)}"
                )
            for transform in transforms:
                OwnTransform(transform, place, False)

    def options(self) -> dict[str, Any]:
        """The arguments as plain values, as they stand in config.yaml."""
        after = {
            place: [OwnTransform(t, place, False).description() for t in own]
            for place, own in self.after.items()
        }
        return asdict(replace(self, after={})) | {"after": after}

    def without_mixing(self) -> "Augment":
        """The same, but each sample is of one image."""
        return replace(self, mosaic=0.0, mixup=0.0)

    def resamples_once(self, rectangular: bool = False) -> bool:
        """Whether a mosaic can be rendered straight into the output: the warp only scales and
        shifts, and no transform of the user's own comes before it."""
        turned = self.degrees or self.shear or self.perspective or self.copy_paste
        early = any(self.after.get(place) for place in LAZY_PLACES)
        return not (turned or rectangular or early)

    def steps(
        self, size: int, shapes: np.ndarray | None = None, resample_once: bool = True
    ) -> list[Transform]:
        """The whole order, from the resized image to size x size pixels.

        Args:
            size: side in pixels.
            shapes: (n, 2) height and width for each image of the data set, for rectangular
                training, which has no mosaic.
            resample_once: Render the mosaic straight into the output, where that can be.
        """
        rectangular = shapes is not None
        once = resample_once and self.resamples_once(rectangular)
        warp = RandomPerspective(
            None if rectangular else size,
            degrees=self.degrees,
            translate=self.translate,
            scale=self.scale,
            shear=self.shear,
            perspective=self.perspective,
        )
        steps: dict[str, list[Transform]] = {
            "resize": [] if once else [_render],
            "mosaic": [
                Letterbox(shapes, scaleup=True) if shapes is not None else Mosaic(size, self.mosaic)
            ],
            "copy_paste": [] if once else [CopyPaste(self.copy_paste)],
            "perspective": [warp],
            "mixup": [] if rectangular else [MixUp(self.mixup)],
            "albumentations": [Albumentations(self.albumentations)] if self.albumentations else [],
            "hsv": [RandomHSV(self.hsv_h, self.hsv_s, self.hsv_v)],
            "flipud": [RandomFlip(0, self.flipud)],
            "fliplr": [RandomFlip(1, self.fliplr)],
        }
        sized = PLACES[PLACES.index("mosaic" if rectangular else "perspective") :]
        for place, own in self.after.items():
            steps[place] += [OwnTransform(transform, place, place in sized) for transform in own]
        return [step for place in PLACES for step in steps[place]]


def _render(sample: Sample, rng: object = None, partner: object = None) -> Sample:
    """Pixels instead of a lazy image."""
    return sample.replace(image=sample.image.render())
