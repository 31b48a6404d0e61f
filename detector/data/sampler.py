"""The order of the images: a function of seed and epoch, the same for any number of processes and
workers; and where in it a training is, by Lightning's counters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Sampler

from boltbox.detector.data.label_table import LabelTable

if TYPE_CHECKING:  # `predict` does without it
    import lightning as L

PARTNERS = 32  # images to draw the other tiles of a batch's mosaics from, where images are weighted
# an image is drawn at least so often as if all were drawn alike, however well its classes are found
LEAST_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Key:
    """Which sample. repeat: how often the index has come before in this epoch · partners: indices
    to draw the other images of a mosaic and MixUp from; empty: all images."""

    epoch: int
    index: int
    repeat: int
    partners: tuple[int, ...] = ()


class TrainBatches(Sampler[list[Key]]):
    """Batches of keys for this process. All processes share one global list of batches; each takes
    every world-th key of each.

    Args:
        n: images. batch_size: over all processes; the last batch of an epoch may be smaller.
        seed: of the run.
        position: tells the epoch to train, and how many batches of it are done already.
        order: (n,) image numbers in the order of every epoch; None: a new order each epoch.
        weights: gives (n,) weights to draw images by, with replacement, and their partners too;
            None: every image once.
        rank, world: this process and how many there are.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int,
        position: Callable[[], tuple[int, int]],
        order: np.ndarray | None = None,
        weights: Callable[[], np.ndarray] | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.n, self.batch_size, self.seed = n, min(batch_size, n), seed
        self.position, self.fixed_order, self.weights = position, order, weights
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """(n,) image numbers of an epoch."""
        rng = np.random.default_rng((self.seed, 0, epoch))
        if self.weights is not None:
            w = self.weights()
            return rng.choice(self.n, self.n, p=w / w.sum())
        return rng.permutation(self.n) if self.fixed_order is None else self.fixed_order

    def batches(self, epoch: int) -> list[list[Key]]:
        """The global batches of an epoch. One that doesn't divide by the number of processes is
        filled up with its own."""
        seen: Counter[int] = Counter()
        order, batches = self.order(epoch).tolist(), []
        others = np.random.default_rng((self.seed, 4, epoch)).permutation(order)
        for start in range(0, self.n, self.batch_size):
            partners: tuple[int, ...] = ()
            if self.weights:  # else three tiles of four would be drawn as if there were no weights
                partners = tuple(others.take(range(start, start + PARTNERS), mode="wrap").tolist())
            batch = []
            for index in order[start : start + self.batch_size]:
                batch.append(Key(epoch, index, seen[index], partners))
                seen[index] += 1
            batches.append(batch + list(islice(cycle(batch), -len(batch) % self.world)))
        return batches

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, start = self.position()
        for batch in self.batches(epoch)[start:]:
            yield batch[self.rank :: self.world]


def rectangular_batches(
    shapes: np.ndarray, size: int, batch_size: int, stride: int, pad: float, stable: bool = True
) -> tuple[list[list[int]], np.ndarray]:
    """Batches of images of like aspect ratio, so that little padding is needed.

    Args:
        shapes: (n, 2) height and width of every image.
        size: longer side in pixels; stride: sides become multiples of it; pad: extra, in strides.
        stable: images of one ratio by area; else as numpy's unstable sort leaves them.

    Returns:
        batches of image numbers, from wide to tall; (n, 2) height and width in pixels to letterbox
            each image to.
    """
    # Images of one ratio are sorted by area. YOLOv5 leaves them to an unstable sort, whose order
    # differs between processors; which images meet in a batch moves the metrics of a small set by a
    # few thousandths.
    ratio = shapes[:, 0] / shapes[:, 1]
    order = np.lexsort((shapes.prod(1), ratio)) if stable else np.argsort(ratio)
    ordered, starts = ratio[order], range(0, len(order), batch_size)
    low, high = np.minimum.reduceat(ordered, starts), np.maximum.reduceat(ordered, starts)
    unit = np.column_stack((high, 1 / low)).clip(max=1)
    of_batches = np.ceil(unit * size / stride + pad).astype(np.int64) * stride
    per_image = np.empty((len(order), 2), np.int64)
    per_image[order] = of_batches.repeat(batch_size, 0)[: len(order)]
    return [order[i : i + batch_size].tolist() for i in starts], per_image


def class_weights(counts: np.ndarray) -> np.ndarray:
    """(C,) inverse class frequencies that sum to 1; absent classes count as if they had one
    label."""
    weights = 1 / np.where(counts == 0, 1, counts)
    return weights / weights.sum()


def image_weights(labels: LabelTable, weights: np.ndarray) -> np.ndarray:
    """(n,) weights to draw the images of an epoch by, that sum to 1.

    Images with objects share by the sum of their objects' `weights` (C,) what images without leave
    them, each of which keeps its even share. YOLOv5 would never draw an image whose weight is 0;
    here every image can come.
    """
    n, counted = len(labels), ~labels.crowd
    image = labels.image_of[counted]
    share = np.bincount(image, weights[labels.classes[counted]], n)
    objects = np.bincount(image, minlength=n) > 0
    share = share / share.sum() if share.any() else objects / max(objects.sum(), 1)
    drawn = np.where(objects, np.maximum(share * objects.mean(), LEAST_SHARE / n), 1 / n)
    return drawn / drawn.sum()


def position(trainer: L.Trainer | None) -> tuple[int, int]:
    """The epoch to train, and the batches of it that are done."""
    if not trainer:
        return 0, 0
    loop: Any = trainer.fit_loop
    epochs, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress
    if epochs.started == epochs.processed or batches.is_last_batch:
        return epochs.started, 0
    return epochs.processed, batches.current.processed


def resume_epoch(trainer: L.Trainer | None, sampler: TrainBatches, images_done: int | None) -> None:
    """A resumed epoch continues after as many images as were done. Lightning has counted batches,
    of which today's epoch may have more or fewer, or larger ones: set its counters to today's. At
    least one batch is left to train."""
    done = position(trainer)[1]
    if trainer and done and images_done is not None:
        shift = min(images_done // sampler.batch_size, len(sampler) - 1) - done
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        for count in ("ready", "started", "processed", "completed"):
            setattr(progress, count, getattr(progress, count) + shift)
