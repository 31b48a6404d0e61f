"""DataLoaders whose batches need no /dev/shm, and whose workers outlive a signal to the group."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import reduction
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from boltbox.detector.data.sample import Batch
from boltbox.detector.system.operating_system import (
    STOP_SIGNALS,
    available_cores,
    die_with_this_parent,
    has_memory_files,
    start_method,
)


def _wait_for_other_threads() -> None:
    """What Python does before each fork. Threads of gloo and NCCL, which free tensors after a
    collective operation, hold a lock of Python's for a moment. The child of a fork within that
    moment waits for the lock for ever (CPython gh-112275, mended in 3.12): seen in loaders."""
    time.sleep(0.01)  # they get the interpreter, and finish
    sys._current_frames()  # waits for that lock, and gives it back


if sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_wait_for_other_threads)


def make_loader(
    samples: Any,
    batches: Iterable[Any],
    collate: Callable[..., Any],
    workers: int,
    processes: int = 1,
    ahead: int = 4,
) -> DataLoader:
    """A DataLoader of given batches.

    Args:
        samples: a Dataset, or a list.
        batches: lists of the keys of its items, one list per batch.
        collate: makes a batch of a list of items.
        workers: at most; no more than the cores that each of the processes has.
        processes: training processes on this machine.
        ahead: batches that each worker makes before they are asked for.
    """
    # atexit would not do: a process that multiprocessing has started, like a rank, ends without it
    Finalize(None, _kill_workers, exitpriority=0)
    workers = min(workers, max(available_cores() // processes, 1))
    shared = workers > 0 and has_memory_files()
    return DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=partial(_collate_to_shared_memory, collate) if shared else collate,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        prefetch_factor=ahead if workers else None,
        multiprocessing_context=start_method() if workers else None,
        worker_init_fn=prepare_worker,
        # of the workers' seeds, which else would be drawn from the global one
        generator=torch.Generator().manual_seed(torch.initial_seed()),
    )


def prepare_worker(worker: int) -> None:
    """What a worker process does first.

    It ignores STOP_SIGNALS: `timeout`, systemd, Slurm and a terminal send them to all processes,
    and the training process, which finishes its batch, still needs its workers. If the training
    process dies, the kernel kills the worker: torch's own check does not end a worker whose pipe is
    full.

    Args:
        worker: its number, which DataLoader passes.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    die_with_this_parent()


def _kill_workers() -> None:
    """At its exit, Python sends SIGTERM to workers, which they ignore, and waits for them."""
    for process in multiprocessing.active_children():
        if process.daemon:
            with contextlib.suppress(RuntimeError):  # torch takes it for a crash
                process.kill()
                process.join()


def _collate_to_shared_memory(collate: Callable[..., Any], items: Any) -> Any:
    """What `collate` makes; the tensors of a Batch are in shared memory."""
    batch = collate(items)
    if not isinstance(batch, Batch):
        return batch
    shared: dict[str, Any] = {}
    for name, value in batch._asdict().items():
        if isinstance(value, Tensor) and value.numel() > 0:  # an empty file cannot be mapped
            shared[name] = _SharedTensor(value)
    return batch._replace(**shared)


class _SharedTensor:
    """A tensor of a batch on its way to another process, where it arrives as a Tensor.

    torch would put it into a file under /dev/shm, which Docker limits to 64 MB; a training whose
    worker finds no room there waits for ever. A file in memory (memfd) has no such limit. It is
    written here and not during pickling, which torch does in a thread whose errors are lost.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.file = open(os.memfd_create("boltbox-batch"), "wb")  # noqa: SIM115 (closed with self)
        tensor.numpy().tofile(self.file)

    def __reduce__(self) -> tuple[Any, ...]:
        return _map_tensor, (reduction.DupFd(self.file.fileno()), self.shape, self.dtype)


def _map_tensor(descriptor: Any, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The tensor in a worker's file, which the kernel frees with it."""
    with open(descriptor.detach(), "rb") as file:
        path = f"/proc/self/fd/{file.fileno()}"
        return torch.from_file(path, shared=True, size=shape.numel(), dtype=dtype).view(shape)
