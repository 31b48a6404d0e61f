"""DataLoaders whose workers outlive a signal to the process group, but not the process that trains,
and pass it their batches in memory that belongs to no file system."""

import ctypes
import math
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.popen_fork import Popen
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from boltbox.detector.system.operating_system import STOP_SIGNALS, available_cores

_PR_SET_PDEATHSIG = 1


def make_loader(
    samples: Any,
    batches: Iterable[Any],
    collate: Callable[..., Any],
    workers: int,
    seed: int,
    processes: int = 1,
) -> DataLoader:
    """A loader of the items of `samples` by the keys that `batches` gives, made into a batch by
    `collate`.

    Args:
        workers: at most; no more than a core's share for each of the `processes` of this machine.
        seed: of what torch draws for its workers; nothing of ours depends on it.
    """
    workers = min(workers, max(available_cores() // processes, 1))
    return DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=partial(_shared, collate),
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        multiprocessing_context=WorkerContext() if workers else None,
        worker_init_fn=prepare_worker,
        generator=torch.Generator().manual_seed(seed),  # else each pass draws from the global one
    )


def _shared(collate: Callable[..., Any], items: Any) -> Any:
    """A batch; in a worker its tensors are put into shared memory, whatever else it is made of:
    tuples, mappings, lists."""
    batch = collate(items)
    return apply_to_collection(batch, Tensor, _Parcel) if get_worker_info() else batch


class _Parcel:
    """A tensor on its way; what arrives is the tensor.

    torch would put it into a file under /dev/shm, whose size is fixed (in Docker's containers 64
    MB), and a worker that finds no room there is waited for without end. Memory without a name
    (memfd) is as large as the machine's, or the container's. It is written here and not where
    batches are pickled: that is a thread of torch's, whose errors are lost.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.file = open(os.memfd_create("boltbox-batch"), "wb")  # noqa: SIM115 (closed with self)
        tensor.numpy().tofile(self.file)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.file.fileno()), self.shape, self.dtype)


def _received(descriptor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The tensor's memory is the worker's file, which is gone with it; no descriptor is kept
    open."""
    with open(descriptor.detach(), "rb") as file:
        size = math.prod(shape)
        if not size:
            return torch.empty(shape, dtype=dtype)
        path = f"/proc/self/fd/{file.fileno()}"
        return torch.from_file(path, shared=True, size=size, dtype=dtype).view(shape)


class _Killed(Popen):
    """A process that SIGTERM, which is blocked in it, does not end."""

    def terminate(self) -> None:
        self._send_signal(signal.SIGKILL)  # type: ignore[attr-defined]


class _Worker(ForkProcess):
    """SIGTERM, SIGINT and SIGHUP are blocked in the worker from its first instruction on:
    `timeout`, systemd, scancel and a terminal send them to the whole process group, and the
    training process, which then finishes its batch, still needs its workers. torch ends a worker by
    its queue; where that takes too long, it asks for SIGTERM, which is SIGKILL here; and so does
    Python, when it exits before torch has come to it."""

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            super().start()  # a worker does not return from it
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @staticmethod
    def _Popen(process_obj: Any) -> _Killed:
        return _Killed(process_obj)

    def terminate(self) -> None:
        """Reaped before torch hears of it, which would take it for a crash."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            super().terminate()
            self.join()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerContext(ForkContext):
    """For `DataLoader(multiprocessing_context=...)`."""

    Process = _Worker


def prepare_worker(worker: int) -> None:
    """For `DataLoader(worker_init_fn=...)`. A worker's parallelism is the number of workers. The
    kernel kills it when the process that has started it is gone: torch's own watch does not end one
    whose pipe is full."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
