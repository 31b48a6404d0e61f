"""macOS and Windows, as far as Linux can play them: what they lack is taken away from each process,
and workers start anew instead of as forks."""

import subprocess
import sys
from pathlib import Path

import pytest
from small_fit import small_fit

import cli

ROOT = Path(cli.__file__).parent
MACOS = """
import os, sys, types
sys.platform = "darwin"  # multiprocessing then starts workers by spawn
sys.modules["triton"] = None
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxies=dict, _get_proxy_settings=dict)
for name in ("memfd_create", "sched_getaffinity", "posix_fallocate"):
    delattr(os, name)
"""
WINDOWS = """
import multiprocessing, os, signal, sys
multiprocessing.set_start_method("spawn")
sys.modules["fcntl"] = None
for name in ("memfd_create", "sched_getaffinity", "posix_fallocate", "fork", "forkpty", "getloadavg", "killpg",
             "pread", "pwrite", "sysconf", "O_DIRECTORY", "O_NOFOLLOW"):
    delattr(os, name)
for name in ("SIGHUP", "pthread_sigmask"):
    delattr(signal, name)
"""  # fmt: skip


def run(*words: str | Path) -> str:
    """What `python cli.py ...` prints; it ends well."""
    line = [sys.executable, str(ROOT / "cli.py"), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("lacks", [MACOS, WINDOWS], ids=["macOS", "Windows"])
def test_fit_and_predict(
    lacks: str, small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "site").mkdir()
    (here / "site/sitecustomize.py").write_text(lacks)
    monkeypatch.setenv("PYTHONPATH", str(here / "site"))
    limits = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --data.workers 1"
    run(*small_fit(small_data, here / "run", *limits.split(), "--data.cache", "disk"))
    images = small_data.parent / "images/val"
    output = run("predict", "--ckpt_path", here / "run", "--source", images, "--workers", "1")
    assert "results:" in output
