"""The training augmentation: its options, its steps in order, and the samples that they make.

The options have the names of YOLOv5's hyper-parameter files.
"""

import inspect
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.sample import IGNORED, Sample
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.colour import Albumentations, RandomFlip, RandomHSV
from boltbox.detector.data.transforms.letterbox import Letterbox, render
from boltbox.detector.data.transforms.mixing import CopyPaste, MixUp, Mosaic
from boltbox.detector.data.transforms.perspective import RandomPerspective
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.ranges import (
    CheckedOptions,
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
)

# A step of the augmentation: transform(sample, rng, partner) -> sample. It returns a new sample
# (`sample.replace(image=..., boxes=...)`) and never writes into the arrays of its argument, which
# other samples share.
#   sample: image and objects after the steps before.
#   rng: the only source of randomness. It is seeded by the seed and the sample's key, so that a
#     sample is the same in whatever process it is made.
#   partner(): another random sample, which went through the steps before this one, for
#     transforms that mix images.
Transform = Callable[[Sample, np.random.Generator, Callable[[], Sample]], Sample]

# The names of the steps, in order; the warp is the step `perspective`.
BEFORE_WARP = (
    "resize",  # computes the pixels of images that come without (can_be_lazy), if a step needs them
    "mosaic",
    "copy_paste",
)
STEP_NAMES = (
    *BEFORE_WARP,
    "perspective",
    "mixup",
    "albumentations",
    "hsv",
    "flipud",
    "fliplr",
)


@dataclass(frozen=True)
class Augment(CheckedOptions):
    """Strengths of the training augmentation; names, ranges and defaults are those of YOLOv5's
    hyper-parameter files, as far as these have them.

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
        close_mosaic: Epochs at the end without mosaic and MixUp.
        mixup: Probability of blending with another sample.
        copy_paste: Share of the objects that are pasted again, mirrored; needs polygon labels.
        albumentations: Transforms of the Albumentations library, like [{"Blur": {"p": 0.01}}].
        after: Custom transforms by the step that they come after (resize, mosaic, copy_paste,
            perspective, mixup, albumentations, hsv, flipud or fliplr), like {mosaic: [{class_path:
            mine.Invert, init_args: {p: 0.5}}]}; docs/augmentation.md.

    Raises:
        InputError: a step that does not exist, or a custom transform that cannot be called as one.
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
    after: dict[str, list[Callable]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for step_name, transforms in self.after.items():
            if step_name not in STEP_NAMES:
                raise InputError(
                    f"data.augment.after.{step_name}: no such step;"
                    f" {nearest(step_name, STEP_NAMES)}"
                )
            for transform in transforms:
                CustomTransform(transform, step_name)  # raises if it cannot be called as one

    def to_dict(self) -> dict[str, Any]:
        """The options by name, in plain types, as config.yaml has them."""
        options = asdict(replace(self, after={}))  # asdict would copy the transforms
        for step_name, transforms in self.after.items():
            options["after"][step_name] = [_to_config(transform) for transform in transforms]
        return options

    def can_be_lazy(self, rectangular: bool) -> bool:
        """Whether images can stay lazy until the warp, the step `perspective`.

        A lazy image (letterbox.py) lists image files and where they go, and has no pixels. A warp
        that only scales and shifts renders it: each file is resampled once, straight to its place
        in the output, instead of twice. No step before the warp may need pixels.

        Args:
            rectangular: rectangular training, which renders images before the letterbox.
        """
        if rectangular or self.degrees or self.shear or self.perspective or self.copy_paste:
            return False
        return not any(self.after.get(step_name) for step_name in BEFORE_WARP)

    def steps(
        self, size: int, shapes: np.ndarray | None = None, lazy: bool = True
    ) -> list[Transform]:
        """The steps in order, from the resized image to size x size pixels.

        Args:
            size: side in pixels.
            shapes: (n, 2) height and width of each image's output, for rectangular training.
            lazy: leave images lazy until the warp, where that is possible.
        """
        rectangular = shapes is not None
        lazy = lazy and self.can_be_lazy(rectangular)
        # Mosaic letterboxes an image where chance makes no mosaic of it; `perspective` then gives
        # the final size. For rectangular batches Letterbox does, in place of Mosaic
        steps: dict[str, Transform | None] = {
            "resize": None if lazy else render,
            "mosaic": Mosaic(size, self.mosaic) if shapes is None else Letterbox(shapes),
            "copy_paste": CopyPaste(self.copy_paste),
            "perspective": RandomPerspective(
                None if rectangular else size,  # None: as large as the sample
                degrees=self.degrees,
                translate=self.translate,
                scale=self.scale,
                shear=self.shear,
                perspective=self.perspective,
            ),
            "mixup": None if rectangular else MixUp(self.mixup),  # mixes samples of one size
            "albumentations": Albumentations(self.albumentations) if self.albumentations else None,
            "hsv": RandomHSV(self.hsv_h, self.hsv_s, self.hsv_v),
            "flipud": RandomFlip(axis=0, p=self.flipud),
            "fliplr": RandomFlip(axis=1, p=self.fliplr),
        }
        # a transform after one of these may change the size, as a later step sets the final one
        may_resize = ("resize",) if rectangular else BEFORE_WARP
        ordered = []
        for step_name, step in steps.items():
            if step is not None:
                ordered.append(step)
            for transform in self.after.get(step_name, ()):
                keeps_size = step_name not in may_resize
                ordered.append(CustomTransform(transform, step_name, keeps_size))
        return ordered


@dataclass
class TrainSamples:
    """Augmented samples by key. A sample depends on its key and the seed only, in whatever process
    it is made.

    Args:
        images: the images before the first step.
        steps: the augmentation in order.
        seed: of the run.
        closing_steps: the augmentation from epoch `closing_from` on: without mosaic and MixUp.
        closing_from: the first of those epochs; infinite: `steps` in all epochs.
    """

    images: ResizedImages
    steps: Sequence[Transform]
    seed: int
    closing_steps: Sequence[Transform] = ()
    closing_from: float = math.inf

    def __len__(self) -> int:
        return len(self.images.image_of)  # one or, with tiles, several samples per image

    def __getitem__(self, key: Key) -> Sample:
        # 1: keeps these random numbers apart from the sampler's, which has 0 there
        rng = np.random.default_rng((self.seed, 1, key.epoch, key.index, key.repeat))
        steps = self.steps if key.epoch < self.closing_from else self.closing_steps
        sample = self._apply(steps, key.index, key, rng)
        self._check_classes(sample, key)
        return sample

    def _check_classes(self, sample: Sample, key: Key) -> None:
        """Raises InputError for a class number without a class, which custom transforms may give:
        the loss would train it as an object of no class."""
        dataset = self.images.dataset
        highest = len(dataset.names) - 1  # the lowest is IGNORED, -1
        wrong = sample.classes[(sample.classes < IGNORED) | (sample.classes > highest)]
        if wrong.size:
            file = dataset.files[self.images.image_of[key.index]]
            raise InputError(
                f"{file}: its sample has the class {wrong[0]} after data.augment; classes are 0 to"
                f" {highest}. Mend the custom transform that sets it"
            )

    def _apply(
        self, steps: Sequence[Transform], index: int, key: Key, rng: np.random.Generator
    ) -> Sample:
        """Sample `index` after these steps."""
        sample = self.images.sample(index, rng)  # with tiles a random window of an image
        for i, step in enumerate(steps):
            sample = step(sample, rng, partial(self._partner, steps[:i], key, rng))
        return sample

    def _partner(self, steps: Sequence[Transform], key: Key, rng: np.random.Generator) -> Sample:
        """A random image after these steps. MixUp, which comes after the mosaic, thus blends two
        samples that went through it."""
        if key.partners:  # with image weights the sampler has chosen some
            index = key.partners[rng.integers(len(key.partners))]
        else:
            index = int(rng.integers(len(self)))
        return self._apply(steps, index, key, rng)

    def object_sizes(self, samples: int) -> np.ndarray:
        """The sizes of objects as training sees them, for AutoAnchor.

        Args:
            samples: how many samples to make: those of the first epoch or epochs.

        Returns:
            (m, 2) width and height in pixels.
        """

        def sizes(number: int) -> np.ndarray:
            epoch, index = divmod(number, len(self))
            sample = self[Key(epoch, index, repeat=0)]
            height, width = sample.size
            boxes = clip_xyxy(sample.boxes[sample.classes != IGNORED], width, height)
            return boxes[:, 2:] - boxes[:, :2]

        # custom transforms may not be thread-safe, and those of Albumentations are not
        unsafe = any(isinstance(step, CustomTransform | Albumentations) for step in self.steps)
        with ThreadPoolExecutor(1 if unsafe else os.cpu_count()) as pool:
            return np.concatenate(list(pool.map(sizes, range(samples))))


class CustomTransform:
    """A user's transform. Its output is checked, so that the message of a mistake names it.

    Args:
        transform: see Transform.
        step_name: the step that it comes after, for messages.
        keeps_size: the output must have the size of the input.

    Raises:
        InputError: it cannot be called as a transform. When it is called: its output is no valid
            sample.
    """

    def __init__(self, transform: Transform, step_name: str, keeps_size: bool = False) -> None:
        self.transform = transform
        self.name = f"data.augment.after.{step_name}: {_import_path(transform)}"
        self.keeps_size = keeps_size
        try:
            inspect.signature(transform).bind(None, None, None)
        except (TypeError, ValueError):
            raise InputError(
                f"{self.name} is no transform: it must be called as f(sample, rng, partner)"
            ) from None

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample]
    ) -> Sample:
        output = self.transform(sample, rng, partner)
        if not self._is_valid(output, sample.size):
            raise InputError(
                f"{self.name} must return a Sample with an image (H, W, 3) uint8 RGB (of the same"
                " size, once that is final), finite boxes (n, 4), n class numbers, and"
                " polygons of n objects or none"
            )
        boxes = output.boxes.astype(np.float32, copy=False)
        return output.replace(boxes=boxes, classes=output.classes.astype(np.int64, copy=False))

    def _is_valid(self, output: object, size: tuple[int, int]) -> bool:
        """Whether the next steps can use the output for a sample of `size`."""
        if not isinstance(output, Sample):
            return False
        for array in (output.image, output.boxes, output.classes):
            if not isinstance(array, np.ndarray):
                return False
        if output.image.dtype != np.uint8 or output.image.shape[2:] != (3,):
            return False
        if self.keeps_size and output.size != size:
            return False
        for array in (output.boxes, output.classes):
            if not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
                return False
        n = output.classes.size
        if output.classes.shape != (n,) or output.boxes.shape != (n, 4):
            return False
        # An object without polygons has an empty list. If all are empty their number does not
        # matter: a transform that replaces boxes and classes may leave the old, empty lists.
        return len(output.polygons) == n or not any(output.polygons)


def _to_config(transform: object) -> str | dict[str, Any]:
    """A transform as config.yaml has it: a function by its import path, a functools.partial or an
    object by class_path and init_args. The init_args of an object are those arguments of its class
    that it keeps as attributes of the same name."""
    if inspect.isroutine(transform):
        return _import_path(transform)
    if isinstance(transform, partial):
        if transform.args:
            raise InputError(f"{_import_path(transform)}: give arguments by name, for config.yaml")
        return {"class_path": _import_path(transform), "init_args": dict(transform.keywords)}
    names = inspect.signature(type(transform).__init__).parameters
    attributes = getattr(transform, "__dict__", {})  # none with __slots__
    values = {name: value for name, value in attributes.items() if name in names}
    return {"class_path": _import_path(transform), "init_args": values}


def _import_path(transform: object) -> str:
    if isinstance(transform, partial):
        transform = transform.func
    named: Any = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"
