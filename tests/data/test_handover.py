"""Batches from the loader's workers where /dev/shm is small. Each test is a process with a /dev/shm
of its own."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from made_runs import is_running, until

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.loader import make_loader
from boltbox.detector.data.sample import Batch

NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
NOT_ALLOWED = 77


def with_shm(size, run, log):
    """What a process says whose /dev/shm has this size."""

    def become():
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        sys.stdout = sys.stderr = open(file, "w", buffering=1)  # noqa: SIM115
        if ctypes.CDLL(None).unshare(NEW_MOUNTS):
            os._exit(NOT_ALLOWED)
        tmpfs = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", "/dev/shm"]
        for line in (["--make-rprivate", "/"], tmpfs):
            if subprocess.run(["mount"] + line).returncode:
                os._exit(NOT_ALLOWED)
        run()

    process = multiprocessing.get_context("fork").Process(target=become)
    process.start()
    process.join(240)
    process.kill()  # if it hangs
    process.join()
    if process.exitcode == NOT_ALLOWED:
        pytest.skip("needs the right to mount a /dev/shm of its own (unshare)")
    said = log.read_text()
    assert process.exitcode == 0, said
    return said


def batches(data, workers):
    """Of training, then of validation."""
    module = DetectionData(str(data), 256, 1, workers)
    module.setup("fit")
    return list(module.train_dataloader()) + list(module.val_dataloader())


def test_batches_larger_than_shm(small_data, tmp_path):
    """They are those that the training process would load itself, and can be written to."""

    def compare():
        torch.set_num_threads(1)
        for found, wanted in zip(batches(small_data, 2), batches(small_data, 0), strict=True):
            assert found.images.nbytes > 2**17
            assert torch.equal(found.images, wanted.images)
            assert torch.equal(found.targets, wanted.targets)
            assert found.targets.dtype == torch.float32
            assert found.indices == wanted.indices
            found.images.zero_()

    with_shm("128k", compare, tmp_path / "log")


class Loaded:
    """Its batches fit into the pipe's messages, but not into the pipe."""

    def __getitem__(self, index):
        return torch.zeros(2**13)


def test_a_worker_ends_with_its_parent(tmp_path):
    """Also when the pipe is full of batches that nobody takes."""
    log = tmp_path / "workers"

    def train():
        loader = make_loader(
            Loaded(), [[k] for k in range(16)], lambda items: Batch(*[items[0]] * 6), 1
        )
        batches = iter(loader)
        next(batches)
        (worker,) = multiprocessing.active_children()
        log.write_text(str(worker.pid))
        time.sleep(1)  # it fills the pipe
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
    until(lambda: not is_running(log.read_text()), "the end of the worker")


def test_a_forked_rank_ends_by_an_exception():
    """It still holds its worker, which ignores the SIGTERM that multiprocessing sends it."""

    def train():
        loader = make_loader(Loaded(), [[0]], lambda items: Batch(*[items[0]] * 6), 1)
        batches = iter(loader)
        next(batches)
        raise SystemExit(3)

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join(240)
    code = process.exitcode
    process.kill()
    assert code == 3
