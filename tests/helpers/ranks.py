"""Processes on this machine that train together over gloo, with a deadline."""

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.spawn import start_processes


def together(work: Callable[..., Any], *args: Any, ranks: int = 2, deadline: float = 120) -> None:
    """Call work(*args) in forked processes, the environment of which is that of ranks that somebody
    else started.

    Raises:
        ProcessRaisedException, ProcessExitedException: from the one that failed first.
        TimeoutError: they were not done in time; all are killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = start_processes(
        _enter, (work, args, ranks, port), nprocs=ranks, join=False, start_method="fork"
    )
    end = time.monotonic() + deadline
    try:
        while not context.join(timeout=1, grace_period=2):  # True when all are done
            if time.monotonic() > end:
                raise TimeoutError(f"{ranks} ranks were not done within {deadline:g} s")
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def _enter(
    rank: int, work: Callable[..., Any], args: tuple[Any, ...], ranks: int, port: int
) -> None:
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    place = {
        "LOCAL_RANK": rank,
        "NODE_RANK": 0,
        "WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in place.items()})
    work(*args)
