"""Two processes with two workers each hold one copy of the images."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared_memory import RANKS, REPORT, WORKERS
from small_fit import small_fit

import cli


@pytest.mark.usefixtures("quick_starts")
def test_one_copy_for_all(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's count: a page that k processes have mapped is 1 / k page in each."""
    root = Path(cli.__file__).parent
    report = tmp_path / "report.json"
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root}/tests/helpers")
    monkeypatch.setenv(REPORT, str(report))
    # the loaders' limit, on a machine with fewer cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(RANKS * WORKERS)))
    for name in ("BOLTBOX_RUN", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    options = [
        "--data.image_size",
        "128",
        "--data.cache",
        "ram",
        "--data.workers",
        str(WORKERS),
        "--trainer.devices",
        str(RANKS),
    ]
    options += [
        "--trainer.max_epochs",
        "2",
        "--trainer.callbacks",
        "shared_memory.Measure",
    ]
    line = [
        sys.executable,
        str(root / "cli.py"),
        *small_fit(small_data, tmp_path / "run", *options),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["images"] == 32
    processes = found["processes"]
    assert len(processes) == RANKS * (1 + 2 * WORKERS)  # workers for training and for validation
    assert all(p["maps"] == 2 for p in processes), "each has both stores mapped, once"
    together = sum(p["store"] for p in processes)
    assert sum(p["store"] > 0 for p in processes) >= RANKS * (1 + WORKERS)
    # a part of a page at the end of each
    assert 0.9 * found["stored"] < together <= found["stored"] + 2 * 4096
    assert done.stdout.count("cache:     train images in memory") == 1, "one process tells"
