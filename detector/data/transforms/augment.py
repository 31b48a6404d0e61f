"""The order of the augmentation, under the names that YOLOv5's hyper-parameter files use."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from detector.data.datasets import DetectionDataset
from detector.data.sample import Sample
from detector.data.sampler import Key
from detector.data.transforms.colour import Albumentations, RandomFlip, RandomHSV
from detector.data.transforms.lazy_image import LazyImages
from detector.data.transforms.letterbox import Letterbox, Resize
from detector.data.transforms.mixing import CopyPaste, MixUp
from detector.data.transforms.mosaic import Mosaic
from detector.data.transforms.perspective import RandomPerspective
from detector.data.transforms.render import Render
from detector.system.ranges import check_ranges


class Transform(Protocol):
    """A step. `rng`: the sample's own np.random.Generator; `draw()` gives another random sample after the steps before this."""

    def __call__(self, sample: Sample, rng: Any, draw: Any) -> Sample: ...


@dataclass
class Augment:
    """Strengths of the training augmentation; names, ranges and defaults are those of YOLOv5's hyper-parameter files.

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
        mixup: Probability of blending with another finished sample.
        copy_paste: Share of the objects that are pasted again, mirrored; needs polygon labels.
        albumentations: Transforms of that library, like [{"Blur": {"p": 0.01}}], before the change of colour.
    """

    hsv_h: float = 0.015
    hsv_s: float = 0.7
    hsv_v: float = 0.4
    degrees: float = 0.0
    translate: float = 0.1
    scale: float = 0.5
    shear: float = 0.0
    perspective: float = 0.0
    flipud: float = 0.0
    fliplr: float = 0.5
    mosaic: float = 1.0
    mixup: float = 0.0
    copy_paste: float = 0.0
    albumentations: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_ranges(vars(self), "data.augment")

    def steps(
        self, size: int, shapes: np.ndarray | None = None, resample_once: bool = True, hsv_later: bool = False
    ) -> list[Transform]:
        """The whole order, from the image file to size x size pixels.

        Args:
            size: side in pixels.
            shapes: (n, 2) height and width for each image of the data set, for rectangular training, which has no mosaic.
            resample_once: Draw the mosaic straight into the output, where the warp only scales and shifts.
            hsv_later: Leave the change of colour to the device.
        """
        rectangular = shapes is not None
        warp = RandomPerspective(
            None if rectangular else size, self.degrees, self.translate, self.scale, self.shear, self.perspective
        )
        upright = not (self.degrees or self.shear or self.perspective or self.copy_paste)
        once = resample_once and upright and not rectangular
        return [
            Resize(size, smooth=False, reduced=once),
            Letterbox(shapes, scaleup=True) if shapes is not None else Mosaic(size, self.mosaic),
            *([] if once else [CopyPaste(self.copy_paste)]),
            warp,
            *([Render()] if once else []),
            *([] if rectangular else [MixUp(self.mixup)]),
            *([Albumentations(self.albumentations)] if self.albumentations else []),
            RandomHSV(self.hsv_h, self.hsv_s, self.hsv_v, hsv_later),
            RandomFlip(0, self.flipud),
            RandomFlip(1, self.fliplr),
        ]


def validation_steps(size: int, shapes: np.ndarray) -> list[Transform]:
    """Longer side to `size` pixels, then centred on the shape (height, width) that `shapes` (n, 2) gives the image."""
    return [Resize(size, smooth=True), Letterbox(shapes, scaleup=False)]


class TrainSamples:
    """Augmented samples by key. An item depends on its key and the seed alone, whichever process asks; items that are asked for
    together share the images that they need in common.

    Args:
        dataset: item i is a Sample at the file's resolution.
        steps: the augmentation in order; the first is not random.
        seed: of the run.
    """

    def __init__(self, dataset: DetectionDataset, steps: Sequence[Transform], seed: int) -> None:
        self.dataset, self.steps, self.seed = dataset, steps, seed
        first, drawn_later = steps[0], any(isinstance(s, Render) for s in steps)
        self._undrawn = LazyImages(dataset, first) if drawn_later and isinstance(first, Resize) else None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Sample:
        return self._prepare(key, self._first)

    def __getitems__(self, keys: Sequence[Key]) -> list[Sample]:
        """A batch, as torch's loader fetches it."""
        shared = functools.cache(self._first)
        return [self._prepare(key, shared if key.partners else self._first) for key in keys]

    def _first(self, index: int) -> Sample:
        """The sample after the first step."""
        return self._undrawn[index] if self._undrawn else self.steps[0](self.dataset[index], None, None)

    def _prepare(self, key: Key, first: Callable[[int], Sample]) -> Sample:
        rng = np.random.default_rng(np.random.SeedSequence((self.seed, 1, key.epoch, key.index, key.repeat)))

        def partner() -> int:
            if key.partners:
                return key.partners[rng.integers(len(key.partners))]
            return int(rng.integers(len(self.dataset)))

        def prepare(index: int, depth: int) -> Sample:
            """The sample after the first `depth` steps."""
            sample = first(index)
            for i in range(1, depth):
                sample = self.steps[i](sample, rng, lambda i=i: prepare(partner(), i))
            return sample

        return prepare(key.index, len(self.steps))


class ValidationSamples:
    """Samples without randomness, with the truth attached; item i is the i-th of the data set."""

    def __init__(self, dataset: DetectionDataset, steps: Sequence[Transform]) -> None:
        self.dataset, self.steps = dataset, steps

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[index]
        for step in self.steps:
            sample = step(sample, None, None)
        sample.truth = self.dataset.labels[index]
        return sample
