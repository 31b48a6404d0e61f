"""Where a training is: its epoch, and how many batches of it are done, by Lightning's counters."""

from typing import Any

import lightning as L

from boltbox.detector.data.loading.sampler import TrainBatches


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


def batch_limit(trainer: L.Trainer | None, batches: int) -> int | None:
    """trainer.limit_train_batches as a number of batches: an integer, or a share of all."""
    limit = trainer.limit_train_batches if trainer else None
    return int(limit * batches) if isinstance(limit, float) else limit


def reads_all(trainer: L.Trainer | None, images: int, batch_size: int) -> bool:
    """Whether the training reads at least as many images as there are."""
    if trainer is None or trainer.max_epochs is None:
        return False
    batches = -(-images // batch_size)
    used = min(batch_limit(trainer, batches) or batches, batches) * batch_size
    return trainer.max_epochs < 0 or trainer.max_epochs * used >= images
