"""The worker processes of a command."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

import torch

from detector.commands.evolve.trial import STOP_TIMEOUT
from detector.commands.evolve.worker import WorkerOptions
from detector.system import parent
from detector.system.errors import InputError

RESTARTS = 3  # of workers that were killed


def environments(workers: int | None, devices: int) -> list[dict[str, str]]:
    """Environment variables for each worker: GPUs of its own, or its share of the processor's threads.

    Args:
        workers: of them; default: as many as there are GPUs for.
        devices: GPUs of a training; 0: it runs on the processor.

    Raises:
        InputError: there are fewer GPUs than a training takes.
    """
    if not devices:
        count = workers or 1
        return [{"OMP_NUM_THREADS": str(max(len(os.sched_getaffinity(0)) // count, 1))}] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(k) for k in range(torch.cuda.device_count())]
    groups = [gpus[k : k + devices] for k in range(0, len(gpus) - devices + 1, devices)]
    if not groups:
        raise InputError(f"trainer.devices is {devices}, but there are {len(gpus)} GPUs")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(groups[k % len(groups)])} for k in range(workers or len(groups))]


class WorkerPool:
    """As many worker processes as there are environments, until the end of a `with` block."""

    def __init__(self, options: WorkerOptions, environments: Sequence[Mapping[str, str]]) -> None:
        self._line = [sys.executable, "-P", "-m", "detector.commands.evolve.worker", json.dumps(asdict(options))]
        self._environments = environments
        self._running = [self._start(environment) for environment in environments]
        self._restarts = 0

    def _start(self, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        home = str(Path(__file__).parents[3])
        path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH")) if p)
        variables = parent.environment(**environment, PYTHONPATH=path)
        # In a session of its own: Ctrl-C reaches this process alone, which then asks the workers to stop.
        return subprocess.Popen(self._line, env=variables, stdout=log, stderr=log, start_new_session=True), log

    def alive(self) -> bool:
        """Whether any is at work. One that was killed is started again.

        Raises:
            InputError: one cannot go on.
        """
        for k, (process, log) in enumerate(self._running):
            code = process.poll()
            if code:
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
                if code > 0 or self._restarts == RESTARTS:
                    raise InputError(f"a worker ended: {lines[-1].removeprefix('error: ') if lines else f'exit code {code}'}")
                self._restarts += 1
                print(f"warning: a worker was killed (signal {-code}); another takes its place")
                self._running[k] = self._start(self._environments[k])
        return any(process.poll() is None for process, _ in self._running)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop them; each asks its training for a checkpoint."""
        for process, _ in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_TIMEOUT + 10
        try:
            for process, _ in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0))
        finally:
            for process, log in self._running:
                process.kill()
                process.wait()
                log.close()
