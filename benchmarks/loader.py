"""Training samples a second: our loader beside a straightforward pipeline of OpenCV calls.

    python -m benchmarks.loader BCCD --image-size 320 --workers 0
    python -m benchmarks.loader BCCD --image-size 640 --workers 2 --cache ram

Both load the training split of a data set (anything that --data.dataset takes) in this process or
in workers, turn about, and make batches of the default recipe: mosaic, random scale and
translation, colour, left-right flip. The figure of each is the median of the rounds; without
workers a second is one of processor time, so that other work on the machine does not count.
"""

import argparse
import contextlib
import io
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Sample, collate
from boltbox.detector.data.sampler import Key

BATCH = 16
ROUNDS = 5
STRAIGHTFORWARD = "straightforward"
MODES = {  # name: literal
    "twice": True,
    "once": False,
}


class Straightforward:
    """Four whole images, resized, pasted on a canvas of twice the size, one warp, colour, flip:
    what a careful programmer writes with OpenCV. With `cache`, resized images are kept in
    memory."""

    def __init__(self, data: DetectionData, cache: bool) -> None:
        dataset = data.datasets["train"]
        self.size, self.files = data.image_size, list(dataset.files)
        self.labels = [(labels.boxes, labels.classes) for labels in dataset.labels]
        self.cache: dict[int, Any] = {}
        if cache:
            self.cache = {i: self._read(i) for i in range(len(self.files))}

    def __len__(self) -> int:
        return len(self.files)

    def _read(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        image, (boxes, _) = cv2.imread(self.files[i], cv2.IMREAD_COLOR_RGB), self.labels[i]
        height, width = image.shape[:2]
        r = self.size / max(height, width)
        if r != 1:
            image = cv2.resize(
                image, (round(width * r), round(height * r)), interpolation=cv2.INTER_LINEAR
            )
        return image, boxes * r

    def __getitem__(self, key: Key) -> Sample:
        size = self.size
        rng = np.random.default_rng((key.epoch, key.index))
        canvas = np.full((2 * size, 2 * size, 3), 114, np.uint8)
        yc, xc = (int(rng.uniform(size / 2, 3 * size / 2)) for _ in range(2))
        boxes = []
        classes = []
        for k, i in enumerate([key.index, *rng.integers(len(self.files), size=3).tolist()]):
            image, own = self.cache.get(i) or self._read(i)
            h, w = image.shape[:2]
            x1 = xc - w if k % 2 == 0 else xc
            y1 = yc - h if k < 2 else yc
            left = max(x1, 0)
            top = max(y1, 0)
            right = min(x1 + w, 2 * size)
            bottom = min(y1 + h, 2 * size)
            canvas[top:bottom, left:right] = image[top - y1 : bottom - y1, left - x1 : right - x1]
            boxes.append(own + np.array((x1, y1, x1, y1)))
            classes.append(self.labels[i][1])
        scale = rng.uniform(0.5, 1.5)
        tx, ty = (size * rng.uniform(0.4, 0.6) - scale * size for _ in range(2))
        image = cv2.warpAffine(
            canvas, np.array(((scale, 0, tx), (0, scale, ty))), (size, size), borderValue=(114,) * 3
        )
        moved = np.clip(np.concatenate(boxes).clip(0, 2 * size) * scale + (tx, ty, tx, ty), 0, size)
        keep = ((moved[:, 2:] - moved[:, :2]) > 2).all(1)
        gains = 1 + rng.uniform(-1, 1, 3) * (0.015, 0.7, 0.4)
        levels = np.arange(256)
        tables = (
            levels * gains[0] % 180,
            (levels * gains[1]).clip(0, 255),
            (levels * gains[2]).clip(0, 255),
        )
        channels = cv2.split(cv2.cvtColor(image, cv2.COLOR_RGB2HSV))
        channels = [cv2.LUT(c, t.astype(np.uint8)) for c, t in zip(channels, tables, strict=True)]
        image = cv2.cvtColor(cv2.merge(channels), cv2.COLOR_HSV2RGB)
        if rng.random() < 0.5:
            image = cv2.flip(image, 1)
            moved[:, [0, 2]] = size - moved[:, [2, 0]]
        return Sample(
            image, moved[keep].astype(np.float32), np.concatenate(classes)[keep], index=key.index
        )


def prepared(dataset: str, size: int, cache: str, literal: bool) -> DetectionData:
    with contextlib.redirect_stdout(io.StringIO()):
        data = DetectionData(dataset, image_size=size, batch_size=BATCH, workers=0, cache=cache)
        data.literal = literal
        data.prepare_data()
        data.setup("fit")
    if data.images["train"].store:  # as after a first epoch
        for i in range(len(data.images["train"])):
            data.images["train"].read(i)
    return data


def passes(dataset: str, size: int, workers: int, cache: str) -> dict[str, Callable[[], float]]:
    """For each pipeline, a function that loads one epoch and gives images per second."""

    def one(samples: Any, batches: Sequence[list[Key]]) -> Callable[[], float]:
        loader = DataLoader(
            samples,
            batch_sampler=batches,  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=collate,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
            worker_init_fn=lambda _: (cv2.setNumThreads(0), torch.set_num_threads(1)),
        )

        # of one process: whatever else the machine does
        clock = time.perf_counter if workers else time.process_time

        def run() -> float:
            start = clock()
            count = sum(len(batch.images) for batch in loader)
            return count / (clock() - start)

        return run

    plain = prepared(dataset, size, "none", literal=False)
    batches = list(plain.train_dataloader().batch_sampler.batches(0))  # type: ignore[union-attr]
    made = {STRAIGHTFORWARD: one(Straightforward(plain, cache != "none"), batches)}
    for name, literal in MODES.items():
        data = prepared(dataset, size, cache, literal)
        batches = list(data.train_dataloader().batch_sampler.batches(0))  # type: ignore[union-attr]
        made[name] = one(data.train_samples, batches)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset")
    parser.add_argument("--image-size", type=int, default=640)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cache", choices=("none", "ram", "disk"), default="none")
    given = parser.parse_args()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    arguments = (given.dataset, given.image_size, given.workers, given.cache)
    runs = passes(*arguments)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            rate = run()
            if turn:  # the first warms up
                rates[name].append(rate)
    print(f"\n{given.image_size} px, {given.workers} workers, cache {given.cache}\n")
    print("| pipeline | images/s | ratio |\n|---|---|---|")
    for name, values in rates.items():
        pairs = zip(values, rates[STRAIGHTFORWARD], strict=True)
        ratio = statistics.median(ours / base for ours, base in pairs)
        print(f"| {name} | {statistics.median(values):.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
