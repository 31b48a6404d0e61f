"""The order of the images: a function of seed and epoch, the same for any number of processes and
workers; and the position of a training in it, by Lightning's counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Sampler

from boltbox.detector.data.label_table import LabelTable, rank_in_group

if TYPE_CHECKING:  # `predict` does not import it
    import lightning as L

PARTNERS = 32  # per batch, where images are weighted
# minimum weight of an image, as a share of the weight that it has if all have the same
MIN_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Key:
    """Which training sample.

    Attributes:
        epoch: of the training.
        index: of the sample: an image, with tiles a window of one.
        repeat: how many times the index was drawn before in this epoch.
        partners: indices of samples for mosaic and MixUp to draw from; empty: all images.
    """

    epoch: int
    index: int
    repeat: int
    partners: tuple[int, ...] = ()


@dataclass
class TrainBatches(Sampler[list[Key]]):
    """Batches of keys for this process. All processes have the same list of global batches; each
    yields every world-th key of every batch.

    Args:
        n: samples.
        batch_size: over all processes; the last batch of an epoch may be smaller.
        seed: of the run.
        position: returns the epoch to train and the number of its batches that are done.
        fixed_order: (n,) image numbers in the order of every epoch; None: a new order each epoch.
        weights: returns (n,) weights to draw images by, with replacement, and their partners;
            None: every image once.
        rank: of this process.
        world: number of processes.
    """

    n: int
    batch_size: int
    seed: int
    position: Callable[[], tuple[int, int]]
    fixed_order: np.ndarray | None = None
    weights: Callable[[], np.ndarray] | None = None
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        self.batch_size = min(self.batch_size, self.n)

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """(n,) image numbers of an epoch."""
        rng = np.random.default_rng((self.seed, 0, epoch))
        if self.weights is not None:
            weights = self.weights()
            return rng.choice(self.n, self.n, p=weights / weights.sum())
        if self.fixed_order is not None:
            return self.fixed_order
        return rng.permutation(self.n)

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[Key]]:
        """The global batches of an epoch, from number `start` on. A batch that does not divide by
        the number of processes is filled up with its own keys."""
        order = self.order(epoch)
        repeats = np.zeros(self.n, np.int64)
        if self.weights:
            repeats = rank_in_group(order)
            # partners are drawn by the weights too: they are taken from the order
            pool = np.random.default_rng((self.seed, 4, epoch)).permutation(order)
        for first in range(start * self.batch_size, self.n, self.batch_size):
            partners: tuple[int, ...] = ()
            if self.weights:
                partners = tuple(pool.take(range(first, first + PARTNERS), mode="wrap").tolist())
            batch = []
            for k in range(first, min(first + self.batch_size, self.n)):
                batch.append(Key(epoch, int(order[k]), int(repeats[k]), partners))
            missing = -len(batch) % self.world
            yield batch + list(islice(cycle(batch), missing))

    def __iter__(self) -> Iterator[list[Key]]:
        for batch in self.batches(*self.position()):
            yield batch[self.rank :: self.world]


def class_weights(counts: np.ndarray) -> np.ndarray:
    """(C,) inverse class frequencies that sum to 1; a class without labels counts as one with
    one."""
    weights = 1 / np.where(counts == 0, 1, counts)
    return weights / weights.sum()


def image_weights(labels: LabelTable, weights: np.ndarray) -> np.ndarray:
    """Weights to draw the images of an epoch by.

    An image without objects has weight 1 / n. The others share the rest by the sum of their
    objects' weights. YOLOv5 would never draw an image whose weight is 0; here every image can be
    drawn.

    Args:
        labels: of n images.
        weights: (C,) of the classes.

    Returns:
        (n,) with sum 1.
    """
    n = len(labels)
    counted = ~labels.crowd
    image = labels.image_of[counted]
    share = np.bincount(image, weights[labels.classes[counted]], n)
    has_objects = np.bincount(image, minlength=n) > 0
    if share.any():
        share = share / share.sum()
    else:
        share = has_objects / max(has_objects.sum(), 1)
    share = np.maximum(share * has_objects.mean(), MIN_SHARE / n)
    drawn = np.where(has_objects, share, 1 / n)
    return drawn / drawn.sum()


def position(trainer: L.Trainer | None) -> tuple[int, int]:
    """The epoch to train, and the number of its batches that are done."""
    if not trainer:
        return 0, 0
    loop: Any = trainer.fit_loop
    epochs = loop.epoch_progress.current
    batches = loop.epoch_loop.batch_progress
    if epochs.started == epochs.processed or batches.is_last_batch:
        return epochs.started, 0
    return epochs.processed, batches.current.processed


def resume_epoch(trainer: L.Trainer | None, sampler: TrainBatches, images_done: int | None) -> None:
    """Continue a resumed epoch after the same number of images.

    Lightning counted batches. If the batch size or the dataset has changed, its counters are set to
    the batches of now; at least one is left to train.

    Args:
        trainer: of the fit.
        sampler: of the fit.
        images_done: images of the epoch that are done; None: this is no resumed epoch.
    """
    _, done = position(trainer)
    if trainer and done and images_done is not None:
        shift = min(images_done // sampler.batch_size, len(sampler) - 1) - done
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        for count in ("ready", "started", "processed", "completed"):
            setattr(progress, count, getattr(progress, count) + shift)
