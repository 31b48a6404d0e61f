"""Training samples per second: our loader beside a straightforward pipeline of OpenCV calls.

    python -m benchmarks.loader BCCD --image_size 320
    python -m benchmarks.loader BCCD --image_size 640 --cache ram

Both load the training split of a dataset in this process, turn about, and make batches of the
default recipe: mosaic, random scale and translation, colour, left-right flip. Each rate is the
median of the rounds; a second is one of processor time, so other work on the machine does not count.
"""

import functools
import time
from typing import Any, Literal

import cv2
import numpy as np
import torch
from jsonargparse import auto_cli

from benchmarks.tables import race
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Sample, collate
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.colour import RandomFlip
from boltbox.detector.data.transforms.perspective import RandomPerspective


class Straightforward:
    """What a careful programmer writes with OpenCV: four complete images, resized, pasted on a
    canvas of twice the size, one warp, colour, flip.

    Args:
        data: After setup.
        cache: Keep the resized images in memory.
    """

    def __init__(self, data: DetectionData, cache: bool) -> None:
        self.size = data.image_size
        self.files = list(data.datasets["train"].files)
        self.labels = data.datasets["train"].labels
        self.warp = RandomPerspective(self.size, translate=0.1, scale=0.5)
        self.flip = RandomFlip(axis=1, p=0.5)
        self.read = functools.cache(self._read) if cache else self._read

    def _read(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Image (h, w, 3), and its boxes (n, 4) in its pixels."""
        image = cv2.imread(self.files[i], cv2.IMREAD_COLOR_RGB)
        height, width = image.shape[:2]
        gain = self.size / max(height, width)
        if gain != 1:
            shape = (round(width * gain), round(height * gain))
            image = cv2.resize(image, shape, interpolation=cv2.INTER_LINEAR)
        return image, self.labels[i].boxes * gain

    def __getitem__(self, key: Key) -> Sample:
        size = self.size
        rng = np.random.default_rng((key.epoch, key.index))
        canvas = np.full((2 * size, 2 * size, 3), 114, np.uint8)
        yc, xc = rng.uniform(size / 2, 3 * size / 2, 2).astype(int)
        boxes = []
        indices = [key.index] + rng.integers(len(self.files), size=3).tolist()
        for k, i in enumerate(indices):
            image, of_image = self.read(i)
            h, w = image.shape[:2]
            x1 = xc - w if k % 2 == 0 else xc
            y1 = yc - h if k < 2 else yc
            inside = image[max(-y1, 0) : 2 * size - y1, max(-x1, 0) : 2 * size - x1]
            canvas[max(y1, 0) : y1 + h, max(x1, 0) : x1 + w] = inside
            boxes.append(of_image + np.array((x1, y1, x1, y1)))
        classes = np.concatenate([self.labels[i].classes for i in indices])
        inside = np.concatenate(boxes, dtype=np.float32).clip(0, 2 * size)
        sample = self.warp(Sample(canvas, inside, classes, index=key.index), rng)
        gains = 1 + rng.uniform(-1, 1, 3) * (0.015, 0.7, 0.4)
        levels = np.arange(256)
        tables = (levels * gains[0] % 180, levels * gains[1], levels * gains[2])
        planes = cv2.split(cv2.cvtColor(sample.image, cv2.COLOR_RGB2HSV))
        changed = []
        for plane, table in zip(planes, tables, strict=True):
            changed.append(cv2.LUT(plane, table.clip(0, 255).astype(np.uint8)))
        image = cv2.cvtColor(cv2.merge(changed), cv2.COLOR_HSV2RGB)
        return self.flip(sample.replace(image=image), rng)


def rate(samples: Any, batches: list[list[Key]]) -> float:
    """Images per second of processor time, over an epoch."""
    start = time.process_time()
    count = 0
    for batch in batches:
        count += len(collate([samples[key] for key in batch]).images)
    return count / (time.process_time() - start)


def main(
    dataset: str, image_size: int = 640, cache: Literal["none", "ram", "disk"] = "none"
) -> None:
    """Compare the pipelines.

    Args:
        dataset: As for data.dataset.
        image_size: Of the network's input, in pixels.
        cache: As for data.cache.
    """
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    samples: dict[str, Any] = {"straightforward": None}
    for name in ("as YOLOv5", "default"):
        data = DetectionData(
            dataset, image_size, batch_size=16, workers=0, tile_size=0, cache=cache
        )
        data.literal = name == "as YOLOv5"  # model.literal
        data.prepare_data()
        data.setup("fit")
        samples[name] = data.train_samples
    samples["straightforward"] = Straightforward(data, cache != "none")
    loader: Any = data.train_dataloader()
    batches = list(loader.batch_sampler.batches(0))
    race({name: functools.partial(rate, each, batches) for name, each in samples.items()})


if __name__ == "__main__":
    auto_cli(main)
