"""How a batch gets from a loader's worker into the process that trains.

torch puts each tensor into a file under /dev/shm, whose size is fixed (in Docker's containers 64
MB), and a worker that finds no room there is waited for without end. Here a batch goes over in
memory that belongs to no file system (memfd), of which there is as much as the machine, or the
container, has.
"""

import contextlib
import math
import os
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from boltbox.detector.data.sample import Batch
from boltbox.detector.system.errors import InputError

SHARED = "/dev/shm"


class Handed:
    """A function that makes batches, for `DataLoader(collate_fn=...)`. In a worker the batch's
    tensors are handed over as above; in the training process itself they are left as they are.

    Raises:
        InputError: the memory is used up.
    """

    def __init__(self, collate: Callable[..., Batch]) -> None:
        self.collate = collate

    def __call__(self, items: Any) -> Batch:
        batch = self.collate(items)
        if get_worker_info() is None:
            return batch
        return Batch(*(_Parcel(field) if isinstance(field, Tensor) else field for field in batch))  # type: ignore[arg-type]


class _Parcel:
    """A tensor on its way; what arrives is the tensor. It is written here and not where batches are
    pickled: that is a thread of torch's, whose errors nobody hears of."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        array: Any = tensor.contiguous().numpy()
        content = memoryview(array).cast("B") if array.size else memoryview(b"")
        self.descriptor = -1
        try:
            self.descriptor = os.memfd_create("boltbox-batch", os.MFD_CLOEXEC)
            done = 0
            while done < content.nbytes:  # the kernel takes at most 2 GB at a time
                done += os.write(self.descriptor, content[done:])
        except OSError as e:
            raise InputError(
                "out of memory: a loader's worker finds no room for a batch of"
                f" {content.nbytes / 1e6:.0f} MB ({e.strerror}); use fewer data.workers, or smaller"
                " batches"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.descriptor), self.shape, self.dtype)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _received(descriptor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The tensor's memory is the worker's file, which is gone with it; no descriptor is kept
    open."""
    number, size = descriptor.detach(), math.prod(shape)
    try:
        if not size:
            return torch.empty(shape, dtype=dtype)
        path = f"/proc/self/fd/{number}"
        return torch.from_file(path, shared=True, size=size, dtype=dtype).view(shape)
    finally:
        os.close(number)


def room_for(workers: int) -> bool:
    """Whether semaphores, which are files of a page under /dev/shm too, find room: four for each
    worker of two loaders, of training and of validation, and some for the rest."""
    with contextlib.suppress(OSError):  # where there is none, the semaphores are elsewhere
        found = os.statvfs(SHARED)
        return found.f_bavail * found.f_frsize >= (2 * workers + 4) * 4 * os.sysconf("SC_PAGE_SIZE")
    return True
