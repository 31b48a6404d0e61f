"""Augmented samples, each a function of seed and key alone."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import cv2
import numpy as np

from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.loading.sampler import Key
from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.lazy_image import LazyImage, Patch
from boltbox.detector.data.transforms.letterbox import Resize, longest_shape
from boltbox.detector.data.transforms.transform import Transform


class LazyImages:
    """The images of a data set as `Resize` makes them, with their pixels still to be rendered. The
    objects of all images are scaled at once, when this is made.

    Args:
        dataset: its images and labels.
        resize: to which size.
    """

    def __init__(self, dataset: DetectionDataset, resize: Resize) -> None:
        self.dataset, self.resize = dataset, resize
        self.labels = dataset.labels.scaled(
            [longest_shape(h, w, resize.size) for h, w in dataset.shapes().tolist()]
        )

    def __getitem__(self, i: int) -> Sample:
        height, width = self.labels.sizes[i].tolist()
        read = cache(partial(self.read, i))  # kept as long as the image
        image: Any = LazyImage((height, width), [Patch(read, (0, 0, width, height))])
        return Sample(image, *self.labels.counted(i), index=i)

    def read(self, i: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB of image i."""
        height, width = self.labels.sizes[i].tolist()
        pixels = self.dataset.read(i, self.resize.size)
        if pixels.shape[:2] == (height, width):
            return pixels
        return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)


class TrainSamples:
    """Augmented samples by key. An item depends on its key and the seed alone, whichever process
    asks.

    Args:
        dataset: item i is a Sample at the file's resolution.
        steps: the augmentation in order; the first is a Resize.
        seed: of the run.
        last_steps: instead of `steps` from epoch `last_from` on; the first is the same Resize.
    """

    def __init__(
        self,
        dataset: DetectionDataset,
        steps: Sequence[Transform],
        seed: int,
        last_steps: Sequence[Transform] = (),
        last_from: int | None = None,
    ) -> None:
        first = steps[0]
        assert isinstance(first, Resize)
        self.dataset, self.resize, self.steps, self.seed = dataset, first, steps, seed
        self.last_steps, self.last_from = last_steps, last_from
        self.lazy = LazyImages(dataset, first) if first.lazy else None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Sample:
        rng = np.random.default_rng(
            np.random.SeedSequence((self.seed, 1, key.epoch, key.index, key.repeat))
        )
        steps = (
            self.steps if self.last_from is None or key.epoch < self.last_from else self.last_steps
        )

        def other() -> int:
            if key.partners:
                return key.partners[rng.integers(len(key.partners))]
            return int(rng.integers(len(self.dataset)))

        def prepare(index: int, depth: int) -> Sample:
            """The sample after the first `depth` steps."""
            sample = self.lazy[index] if self.lazy else self.resize(self.dataset[index])
            for i in range(1, depth):
                sample = steps[i](sample, rng, lambda i=i: prepare(other(), i))  # type: ignore[misc]
            return sample

        return prepare(key.index, len(steps))
