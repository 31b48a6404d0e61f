"""Training samples per second: our loader beside a straightforward pipeline of OpenCV calls.

    python -m benchmarks.loader BCCD --image-size 320
    python -m benchmarks.loader BCCD --image-size 640 --cache ram

Both load the training split of a dataset in this process, turn about, and make batches of the
default recipe: mosaic, random scale and translation, colour, left-right flip. Each rate is the
median of the rounds; a second is one of processor time, so other work on the machine does not count.
"""

import argparse
import statistics
import time
from typing import Any

import cv2
import numpy as np
import torch

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Sample, collate
from boltbox.detector.data.sampler import Key

ROUNDS = 5
STRAIGHTFORWARD = "straightforward"
LITERAL = {"as YOLOv5": True, "default": False}  # value of model.literal


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
        self.cache: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        if cache:
            for i in range(len(self.files)):
                self.cache[i] = self._read(i)

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
        yc = int(rng.uniform(size / 2, 3 * size / 2))
        xc = int(rng.uniform(size / 2, 3 * size / 2))
        boxes = []
        classes = []
        indices = [key.index] + rng.integers(len(self.files), size=3).tolist()
        for k, i in enumerate(indices):
            image, of_image = self.cache[i] if i in self.cache else self._read(i)
            h, w = image.shape[:2]
            x1 = xc - w if k % 2 == 0 else xc
            y1 = yc - h if k < 2 else yc
            left = max(x1, 0)
            top = max(y1, 0)
            right = min(x1 + w, 2 * size)
            bottom = min(y1 + h, 2 * size)
            canvas[top:bottom, left:right] = image[top - y1 : bottom - y1, left - x1 : right - x1]
            boxes.append(of_image + np.array((x1, y1, x1, y1)))
            classes.append(self.labels[i].classes)
        scale = rng.uniform(0.5, 1.5)
        tx = size * rng.uniform(0.4, 0.6) - scale * size
        ty = size * rng.uniform(0.4, 0.6) - scale * size
        matrix = np.array(((scale, 0, tx), (0, scale, ty)))
        image = cv2.warpAffine(canvas, matrix, (size, size), borderValue=(114, 114, 114))
        moved = np.concatenate(boxes).clip(0, 2 * size) * scale + (tx, ty, tx, ty)
        moved = moved.clip(0, size)
        keep = ((moved[:, 2:] - moved[:, :2]) > 2).all(1)
        gains = 1 + rng.uniform(-1, 1, 3) * (0.015, 0.7, 0.4)
        levels = np.arange(256)
        hue, saturation, value = cv2.split(cv2.cvtColor(image, cv2.COLOR_RGB2HSV))
        hue = cv2.LUT(hue, (levels * gains[0] % 180).astype(np.uint8))
        saturation = cv2.LUT(saturation, (levels * gains[1]).clip(0, 255).astype(np.uint8))
        value = cv2.LUT(value, (levels * gains[2]).clip(0, 255).astype(np.uint8))
        image = cv2.cvtColor(cv2.merge((hue, saturation, value)), cv2.COLOR_HSV2RGB)
        if rng.random() < 0.5:
            image = cv2.flip(image, 1)
            moved[:, [0, 2]] = size - moved[:, [2, 0]]
        kept = moved[keep].astype(np.float32)
        return Sample(image, kept, np.concatenate(classes)[keep], index=key.index)


def prepared(dataset: str, size: int, cache: str, literal: bool) -> DetectionData:
    """After setup, with the images in the cache as after a first epoch."""
    data = DetectionData(dataset, image_size=size, batch_size=16, workers=0, cache=cache)
    data.literal = literal
    data.prepare_data()
    data.setup("fit")
    for i in range(len(data.images["train"])):
        data.images["train"].read(i)
    return data


def rate(samples: Any, batches: list[list[Key]]) -> float:
    """Images per second of processor time, over an epoch."""
    start = time.process_time()
    count = 0
    for batch in batches:
        count += len(collate([samples[key] for key in batch]).images)
    return count / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset")
    parser.add_argument("--image-size", type=int, default=640)
    parser.add_argument("--cache", choices=("none", "ram", "disk"), default="none")
    options = parser.parse_args()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    samples: dict[str, Any] = {}
    for name, literal in LITERAL.items():
        data = prepared(options.dataset, options.image_size, options.cache, literal)
        samples[name] = data.train_samples
    samples[STRAIGHTFORWARD] = Straightforward(data, options.cache != "none")
    batches = list(data.train_dataloader().batch_sampler.batches(0))  # type: ignore[union-attr]
    rates: dict[str, list[float]] = {name: [] for name in samples}
    for turn in range(ROUNDS + 1):
        for name in samples:
            measured = rate(samples[name], batches)
            if turn:  # the first warms up
                rates[name].append(measured)
    print(f"\n{options.image_size} px, cache {options.cache}\n")
    print("| pipeline | images/s | ratio |\n|---|---|---|")
    for name, values in rates.items():
        ratios = np.array(values) / rates[STRAIGHTFORWARD]
        print(f"| {name} | {statistics.median(values):.0f} | {np.median(ratios):.2f} |")


if __name__ == "__main__":
    main()
