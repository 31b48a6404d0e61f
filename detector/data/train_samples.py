"""Augmented samples, each a function of seed and key alone."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.sample import Sample
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.colour import Albumentations, RandomHSV
from boltbox.detector.data.transforms.transform import OwnTransform, Transform
from boltbox.detector.model.boxes import clip_xyxy

MOST_OBJECTS = 1_000_000  # that AutoAnchor looks at; it chooses from them at random


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
        rng = np.random.default_rng(
            np.random.SeedSequence((self.seed, 1, key.epoch, key.index, key.repeat))
        )
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
        # colours do not move boxes; own transforms may not be safe in threads
        steps = [step for step in self.steps if not isinstance(step, Albumentations | RandomHSV)]
        own = any(isinstance(step, OwnTransform) for step in steps)
        plain = TrainSamples(self.images, steps, self.seed)

        def sizes(k: int) -> np.ndarray:
            sample = plain[Key(*divmod(k, len(self)), 0)]
            boxes = clip_xyxy(sample.boxes, *sample.size[::-1])
            return boxes[:, 2:] - boxes[:, :2]

        with ThreadPoolExecutor(1 if own else os.cpu_count()) as pool:
            return np.concatenate(list(pool.map(sizes, range(samples))))[:MOST_OBJECTS]
