"""Processes on this machine that train together over gloo, with a deadline."""

import contextlib
import os
import random
import socket
import subprocess
import time

from forked import forks
from made_runs import ROOT
from torch.multiprocessing.spawn import start_processes

from boltbox.detector.system.operating_system import kill_group

DEADLINE = 240  # seconds for commands that run side by side, on a busy machine


def run_all(*jobs, folder="", **environment):
    """Run command lines side by side, each in a folder and a session of its own.

    Args:
        jobs: Command line and folder, whose log.txt gets what all its processes print.
        folder: Of further modules.
        environment: Further variables.

    Returns:
        Exit code and output of each.
    """
    variables = {
        k: v for k, v in os.environ.items() if k not in ("BOLTBOX_RUN", "PYTEST_XDIST_WORKER")
    }
    variables["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "tests/helpers"), folder))
    processes = []
    try:
        for line, place in jobs:
            place.mkdir(parents=True, exist_ok=True)
            with forks(), open(place / "log.txt", "w") as log:
                processes.append(
                    subprocess.Popen(
                        list(map(str, line)), cwd=place, env=variables | environment,
                        stdout=log, stderr=log, start_new_session=True,
                    )
                )  # fmt: skip
        codes = [process.wait(DEADLINE) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            kill_group(process.pid)
        raise
    logs = [(place / "log.txt").read_text(errors="replace") for _, place in jobs]
    return list(zip(codes, logs, strict=True))


def free_port():
    """One that no socket gets by itself: those of other processes would be in the way."""
    # not of the common generator: the tests seed it, and in all workers with the same
    for port in random.SystemRandom().sample(range(20000, 30000), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("localhost", port))
            return port
    raise OSError("no free port")


def together(work, *args, ranks=2, deadline=240):
    """Call work(*args) in forked processes, the environment of which is that of ranks that somebody
    else started.

    Raises:
        ProcessRaisedException, ProcessExitedException: from the one that failed first.
        TimeoutError: they were not done in time; all are killed.
    """
    port = free_port()
    context = start_processes(
        _enter, (work, args, ranks, port), nprocs=ranks, join=False, start_method="fork"
    )
    end = time.monotonic() + deadline
    try:
        while not context.join(timeout=1, grace_period=0.5):  # True when all are done
            if time.monotonic() > end:
                raise TimeoutError(f"{ranks} ranks were not done within {deadline:g} s")
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def _enter(rank, work, args, ranks, port):
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
