"""The training's augmentation: its steps, their order under the names of YOLOv5's hyper-parameter
files, and the samples that come out of them, each a function of seed and key alone."""

import inspect
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.sample import Sample
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.colour import Albumentations, RandomFlip, RandomHSV
from boltbox.detector.data.transforms.letterbox import Letterbox
from boltbox.detector.data.transforms.mixing import CopyPaste, MixUp, Mosaic
from boltbox.detector.data.transforms.perspective import RandomPerspective
from boltbox.detector.model.boxes import clip_xyxy
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.system.ranges import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt

# A step: any class or function that is called as f(sample, rng, partner). It returns another sample
# (`sample.replace(image=..., boxes=...)`) and never writes into the arrays of the one it is given:
# others share them.
#   sample: image and objects after the steps before.
#   rng: everything random comes from it. It is the sample's own, seeded by (seed, epoch, index), so
#     a sample is the same whatever process makes it.
#   partner: gives another random sample after the steps before, for what mixes images.
Transform = Callable[[Sample, np.random.Generator, Callable[[], Sample]], Sample]

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
MOST_OBJECTS = 1_000_000  # that AutoAnchor looks at; it chooses from them at random
BLOCK = 16  # samples that AutoAnchor makes before it looks whether these are enough


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
        close_mosaic: Epochs at the end without mosaic and MixUp.
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
    after: dict[str, list[Callable]] = field(default_factory=dict)

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
            place: [_description(transform) for transform in own]
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
            "mosaic": [Letterbox(shapes) if shapes is not None else Mosaic(size, self.mosaic)],
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


class OwnTransform:
    """A transform of the user's own at its place. What it returns is checked, so that the message
    of a mistake names it.

    Args:
        transform: see Transform.
        place: the step that it comes after, for messages.
        keeps_size: from here on all images of a batch must have one size.

    Raises:
        InputError: it cannot be called as a transform; when it is called: it returned what is no
            sample.
    """

    def __init__(self, transform: Transform, place: str, keeps_size: bool) -> None:
        self.transform, self.place, self.keeps_size = transform, place, keeps_size
        try:
            inspect.signature(transform).bind(None, None, None)
        except (TypeError, ValueError):
            raise InputError(
                f"{self._name()} is no transform: it must be called as f(sample, rng, partner)"
            ) from None

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partner: Callable[[], Sample]
    ) -> Sample:
        made = self.transform(sample, rng, partner)
        if not self._fits(made, sample.size):
            raise InputError(
                f"{self._name()} must return a Sample with an image (H, W, 3) uint8 RGB, from the"
                " warp on as large as it was, finite boxes (n, 4), n classes, and polygons"
                " of n objects or none"
            )
        boxes = made.boxes.astype(np.float32, copy=False)
        return made.replace(boxes=boxes, classes=made.classes.astype(np.int64, copy=False))

    def _fits(self, made: Sample, size: tuple[int, int]) -> bool:
        """Whether what it made of an image of `size` is a sample that the next steps can take."""
        if not isinstance(made, Sample) or not isinstance(made.polygons, list):
            return False
        arrays = made.image, made.boxes, made.classes
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return False
        n = len(made.boxes)
        return bool(
            made.image.dtype == np.uint8
            and made.image.shape[2:] == (3,)
            and (made.size == size or not self.keeps_size)
            and made.boxes.shape == (n, 4)
            and np.isfinite(made.boxes).all()
            and made.classes.shape == (n,)
            and len(made.polygons) in (0, n)
        )

    def _name(self) -> str:
        return f"data.augment.after.{self.place}: {_import_path(self.transform)}"


def _description(transform: object) -> str | dict[str, Any]:
    """As it stands in config.yaml: an import path, or class_path and init_args as far as its
    attributes tell them."""
    if inspect.isroutine(transform):
        return _import_path(transform)
    names = inspect.signature(type(transform).__init__).parameters
    values = {name: value for name, value in vars(transform).items() if name in names}
    return {"class_path": _import_path(transform), "init_args": values}


def _import_path(transform: object) -> str:
    named: Any = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"


class TrainSamples:
    """Augmented samples by key. An item depends on its key and the seed alone, whichever process
    asks.

    Args:
        images: what the steps begin with.
        steps: the augmentation in order.
        seed: of the run.
        last_steps: instead of `steps` from epoch `last_from` on.
    """

    def __init__(
        self,
        images: ResizedImages,
        steps: Sequence[Transform],
        seed: int,
        last_steps: Sequence[Transform] = (),
        last_from: int | None = None,
    ) -> None:
        self.images, self.steps, self.seed = images, steps, seed
        self.last_steps, self.last_from = last_steps, last_from

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Sample:
        rng = np.random.default_rng((self.seed, 1, key.epoch, key.index, key.repeat))
        last = self.last_from is not None and key.epoch >= self.last_from
        steps = self.last_steps if last else self.steps

        def other() -> int:
            if key.partners:
                return key.partners[rng.integers(len(key.partners))]
            return int(rng.integers(len(self)))

        def prepare(index: int, depth: int) -> Sample:
            """The sample after the first `depth` steps."""
            sample = self.images[index]
            for i in range(depth):
                sample = steps[i](sample, rng, lambda i=i: prepare(other(), i))  # type: ignore[misc]
            return sample

        return prepare(key.index, len(steps))

    def object_sizes(self, samples: int) -> np.ndarray:
        """(m, 2) width and height in pixels of the objects in the first `samples` samples, for
        AutoAnchor; MOST_OBJECTS at most."""
        # Albumentations count as colours, which move no boxes; own transforms may not be safe in
        # threads
        steps = [step for step in self.steps if not isinstance(step, Albumentations | RandomHSV)]
        own = any(isinstance(step, OwnTransform) for step in steps)
        plain = TrainSamples(self.images, steps, self.seed)

        def sizes(k: int) -> np.ndarray:
            sample = plain[Key(*divmod(k, len(self)), 0)]
            boxes = clip_xyxy(sample.boxes, *sample.size[::-1])
            return boxes[:, 2:] - boxes[:, :2]

        found: list[np.ndarray] = []
        with ThreadPoolExecutor(1 if own else os.cpu_count()) as pool:
            for start in range(0, samples, BLOCK):
                found += pool.map(sizes, range(start, min(start + BLOCK, samples)))
                if sum(map(len, found)) >= MOST_OBJECTS:
                    break
        return np.concatenate(found)[:MOST_OBJECTS]
