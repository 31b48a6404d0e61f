"""Trainings of several recipes, some at a time; what is done stays done, what was interrupted goes
on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from benchmarks.recipes.training import Training
from boltbox.detector.system.errors import InputError


def run_all(trainings: Sequence[Training], jobs: int, report: Callable[[Training], None]) -> None:
    """Run those that are not done, `jobs` at a time, each with its share of the processor's
    threads.

    Args:
        report: called after each that ends.

    Raises:
        InputError: one failed; those that are running end first, no other is begun.
    """
    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)
    environment = {"OMP_NUM_THREADS": str(threads)}

    def run(training: Training) -> None:
        training.run(environment)
        report(training)

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run, training) for training in trainings if not training.is_done()]
        done, undone = wait(waiting, return_when=FIRST_EXCEPTION)
        for future in undone:
            future.cancel()
    errors = [
        str(error) for future in done if not future.cancelled() and (error := future.exception())
    ]
    if errors:
        raise InputError("\n".join(errors))
