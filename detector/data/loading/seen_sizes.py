"""How large the objects are that the network sees in a training, for AutoAnchor."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from boltbox.detector.data.loading.sampler import Key
from boltbox.detector.data.loading.train_samples import TrainSamples
from boltbox.detector.data.sample import Sample
from boltbox.detector.data.transforms.colour import Albumentations, RandomHSV
from boltbox.detector.data.transforms.transform import OwnTransform
from boltbox.detector.model.boxes import clip_xyxy

MOST_OBJECTS = 1_000_000  # that AutoAnchor looks at; it chooses from them at random


def seen_sizes(samples: TrainSamples, most: int) -> np.ndarray:
    """(m, 2) width and height in pixels of the objects in the first `most` samples, Albumentations
    aside; MOST_OBJECTS at most."""
    steps = [step for step in samples.steps if not isinstance(step, Albumentations | RandomHSV)]
    plain = TrainSamples(samples.dataset, steps, samples.seed)
    epoch_of_image = (divmod(k, len(plain)) for k in range(most))
    # own transforms may not be safe in threads
    threads = 1 if any(isinstance(step, OwnTransform) for step in steps) else os.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        sizes = pool.map(lambda key: _sizes(plain[Key(key[0], key[1], 0)]), epoch_of_image)
        return np.concatenate(list(sizes))[:MOST_OBJECTS]


def _sizes(sample: Sample) -> np.ndarray:
    height, width = sample.size
    boxes = clip_xyxy(sample.boxes, width, height)
    return boxes[:, 2:] - boxes[:, :2]
