"""DataLoaders: how many workers, and how what they make gets to the process that trains."""

import os
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Sampler

from detector.data.loading.handover import Handed, room_for
from detector.data.sample import Batch
from detector.system.open_files import allow_workers
from detector.system.rank_zero import rank_zero_print
from detector.system.signals import ignore_in_worker


def usable_workers(wanted: int, processes: int) -> int:
    """At most a core's share for each of the processes of this machine; none if there is no room for them."""
    workers = min(wanted, max(len(os.sched_getaffinity(0)) // processes, 1))
    if workers and not room_for(workers):
        rank_zero_print(
            "/dev/shm is full: no workers, images are loaded in the training process; Docker makes room with --shm-size"
        )
        return 0
    return workers


def make_loader(samples: Any, batches: Sampler[Any], collate: Callable[..., Batch], workers: int, seed: int) -> DataLoader:
    """A loader of the items of `samples` by the keys that `batches` gives, made into a Batch by `collate`.

    Args:
        workers: of `usable_workers`.
        seed: of what torch draws for its workers; nothing of ours depends on it.
    """
    allow_workers(workers)
    return DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=Handed(collate),
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_prepare_worker,
        generator=torch.Generator().manual_seed(seed),  # else each pass draws from the global one
    )


def as_it_is(batch: Any) -> Any:
    """A collate function for batches that are made already: torch would make tensors of their arrays."""
    return batch


def _prepare_worker(worker: int) -> None:
    """A worker's parallelism is the number of workers. Signals of the terminal are for the process that has started it. It ends
    when that is gone."""
    Finalize(None, _leave_orphan, (os.getppid(),), exitpriority=100)  # before it waits for its queue
    ignore_in_worker()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def _leave_orphan(parent: int) -> None:
    """torch ends a worker within seconds when its parent is gone. But the queue of its batches waits until all are in the pipe,
    which, when it is full, is for ever: nobody reads it, and the worker itself holds its other end open."""
    if os.getppid() != parent:
        os._exit(1)
