"""A loader's worker process: how it starts, and how it ends."""

import os
import signal
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.popen_fork import Popen
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize

import cv2
import torch

from boltbox.detector.system.signals import STOP


class _Fork(Popen):
    """SIGTERM, SIGINT and SIGHUP are blocked in the worker from its first instruction on:
    `timeout`, systemd, scancel and a terminal send them to the whole process group, and the
    training process, which then finishes its batch, still needs its workers. torch ends a worker by
    its queue; where that takes too long, it asks for SIGTERM, which is SIGKILL here."""

    def _launch(self, process_obj: BaseProcess) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        try:
            super()._launch(process_obj)  # type: ignore[misc]  # a worker does not return from it
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def terminate(self) -> None:
        """Reaped before torch hears of it, which would take it for a crash."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            self.kill()
            self.wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker(ForkProcess):
    _Popen = staticmethod(_Fork)


class WorkerContext(ForkContext):
    """For `DataLoader(multiprocessing_context=...)`."""

    Process = _Worker


def prepare_worker(worker: int) -> None:
    """For `DataLoader(worker_init_fn=...)`. A worker's parallelism is the number of workers. It
    ends when the process that has started it is gone."""
    # before it waits for its queue
    Finalize(None, _leave_orphan, (os.getppid(),), exitpriority=100)
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def _leave_orphan(parent: int) -> None:
    """torch ends a worker within seconds when its parent is gone. But the queue of its batches
    waits until all are in the pipe, which, when it is full, is for ever: nobody reads it, and the
    worker itself holds its other end open."""
    if os.getppid() != parent:
        os._exit(1)
