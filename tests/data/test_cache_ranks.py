"""Two processes with two workers each hold one copy of the images."""

from pathlib import Path

import pytest

from benchmarks.cache_memory import RANKS, WORKERS, train


def test_one_copy_for_all(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's count: a page that k processes have mapped is 1 / k page in each."""
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    options = ["--data.image_size", "128", "--data.batch_size", "8", "--data.cache", "ram"]
    options += ["--model.network.width_multiple", "0.125", "--model.network.depth_multiple", "0.1"]
    options += ["--autoanchor.enabled", "false"]
    options += [
        "--report.enabled",
        "false",
        "--pictures.enabled",
        "false",
        "--doctor.enabled",
        "false",
    ]
    found = train(str(small_data), tmp_path, *options)
    assert found["images"] == 32
    processes = found["processes"]
    assert len(processes) == RANKS * (1 + 2 * WORKERS)  # workers for training and for validation
    assert all(p["maps"] == 2 for p in processes), "each has both stores mapped, once"
    together = sum(p["store"] for p in processes)
    assert sum(p["store"] > 0 for p in processes) >= RANKS * (1 + WORKERS)
    # a part of a page at the end of each
    assert 0.9 * found["stored"] < together <= found["stored"] + 2 * 4096
    assert found["output"].count("train: images are cached in memory") == 1, "one process tells"
