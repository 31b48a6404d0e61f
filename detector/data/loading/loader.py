"""DataLoaders: how many workers, and how what they make gets to the process that trains."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from boltbox.detector.data.loading.handover import Handed, room_for
from boltbox.detector.data.loading.worker import WorkerContext, prepare_worker
from boltbox.detector.data.sample import Batch
from boltbox.detector.system.rank_zero import rank_zero_print


def usable_workers(wanted: int, processes: int) -> int:
    """At most a core's share for each of the processes of this machine; none if there is no room
    for them."""
    workers = min(wanted, max(len(os.sched_getaffinity(0)) // processes, 1))
    if workers and not room_for(workers):
        rank_zero_print(
            "/dev/shm is full: no workers, images are loaded in the training process; Docker makes"
            " room with --shm-size"
        )
        return 0
    return workers


def make_loader(
    samples: Any, batches: Iterable[Any], collate: Callable[..., Batch], workers: int, seed: int
) -> DataLoader:
    """A loader of the items of `samples` by the keys that `batches` gives, made into a Batch by
    `collate`.

    Args:
        workers: of `usable_workers`.
        seed: of what torch draws for its workers; nothing of ours depends on it.
    """
    return DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=Handed(collate),
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        multiprocessing_context=WorkerContext() if workers else None,
        worker_init_fn=prepare_worker,
        generator=torch.Generator().manual_seed(seed),  # else each pass draws from the global one
    )
