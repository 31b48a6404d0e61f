"""Shared by the tests: one thread each (they run side by side), a small data set, a place of their own to write to."""

import os
import signal
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # also for the processes that tests start

import pytest
import torch

from detector.data.demo import make_demo

pytest.register_assert_rewrite("made_samples", "made_datasets")
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started with it ignored


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches of the tests are not in the user's home."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["BOLTBOX_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data.yaml of 24 training and 8 validation images of the demo data set."""
    return make_demo(tmp_path_factory.mktemp("data") / "demo", train=24, val=8)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, where `runs/` may appear."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BOLTBOX_RUN", raising=False)
    return tmp_path
