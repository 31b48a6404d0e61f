"""How much the image cache may hold: all or nothing by itself, else never more than its budget."""

import os
from pathlib import Path

import numpy as np
import pytest
from made_cache import SIZE, assert_equal, batches, noise_data, opened, store_folder  # noqa: F401
from made_datasets import lay_out

import cli
from boltbox.detector.data.cache import images as image_cache
from boltbox.detector.data.cache.budget import bytes_of, free_memory
from boltbox.detector.data.cache.store import Layout
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.system.errors import InputError

SMALL = ["--data.image_size", "64", "--data.batch_size", "8", "--data.workers", "0", "--model.width_multiple", "0.125",
         "--model.depth_multiple", "0.1", "--trainer.enable_progress_bar", "false", "--report.enabled", "false",
         "--pictures.enabled", "false", "--autoanchor.enabled", "false", "--trainer.max_epochs", "1"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "free", "said"),
    [
        ([], 4_000_000, "train: 24 of 24 images cached in memory (0.3 MB)"),
        ([], 400_000, "would take 0.000375 GB, more than a quarter of the memory that is free (0.0001 GB)"),
        (["--data.cache_budget", "1MB"], 500_000, "train: 24 of 24 images cached in memory (0.3 MB)"),
        (["--data.cache_budget", "1MB"], 400_000, "more than four fifths of the memory that is free (0.00032 GB)"),
        (["--data.cache_budget", "200KB"], 4_000_000, "more than data.cache_budget (0.0002 GB)"),
        (["--trainer.limit_train_batches", "2"], 4_000_000, ""),
        (["--data.cache", "none"], 4_000_000, ""),
    ],
)  # fmt: skip
def test_in_memory_if_there_is_plenty(
    small_data: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    options: list[str],
    free: int,
    said: str,
) -> None:
    """The default: only the whole set, only for a training that reads about all of it."""
    for module in ("auto", "images"):
        monkeypatch.setattr(f"boltbox.detector.data.cache.{module}.free_memory", lambda: free)
    cli.main(["fit", "--data.dataset", str(small_data), *SMALL, *options])
    told = capsys.readouterr().out
    assert said in told
    assert ("cached" in told) == bool(said)


def test_never_a_byte_more_than_the_budget(
    data: Path, cache: Path, capsys: pytest.CaptureFixture
) -> None:
    """The first images are in, as many as fit; both splits together keep to it."""
    plain = batches(opened(data))
    seen = set()
    for budget in (1, 4000, 10_000, 14_000, 40_000, 60_000, 80_000, 120_000, 200_000):
        module = opened(data, "disk", cache_budget=budget)
        files = [p for p in cache.iterdir()]
        assert sum(p.stat().st_size for p in files) <= budget
        stores = [module.datasets[s].store for s in ("train", "val")]
        stored = [sum(s.read(i) is not None for i in range(8)) if s else 0 for s in stores]
        assert [s.stored if s else 0 for s in stores] == stored
        for s, k in zip(stores, stored, strict=True):
            assert s is None or [s.read(i) is not None for i in range(8)] == [True] * k + [
                False
            ] * (8 - k)
        assert_equal(batches(module), plain)
        seen.add(tuple(stored))
    assert (0, 0) in seen
    assert (8, 8) in seen
    assert any(0 < train < 8 for train, _ in seen)
    assert any(train == 8 and 0 < val < 8 for train, val in seen)
    said = capsys.readouterr().out
    assert "train: no images cached; there is no room" in said
    assert "image cache of train rebuilt because data.cache_budget changed" in said


def test_layout_takes_as_many_as_fit() -> None:
    sizes = np.array([[100, 50], [10, 10], [30, 40]])
    whole = Layout.within(10**9, sizes, 20)
    # the longer side becomes 20 pixels
    assert whole.shapes.tolist() == [[20, 10], [20, 20], [15, 20]]
    assert whole.starts.tolist() == [0, 600, 1800, 2700]
    assert len(Layout.within(whole.most_bytes, sizes, 20).shapes) == 3
    assert len(Layout.within(whole.most_bytes - 1, sizes, 20).shapes) == 2
    assert len(Layout.within(0, sizes, 20).shapes) == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (1000, 1000),
        ("1000", 1000),
        ("2kb", 2000),
        ("7.5 GB", 75 * 10**8),
        ("1GiB", 2**30),
        ("3TB", 3 * 10**12),
    ],
)
def test_bytes(text: int | str, number: int) -> None:
    assert bytes_of("data.cache_budget", text) == number


@pytest.mark.parametrize("text", ["much", "-1", "0", "8 G", "GB", "", "1e9"])
def test_bytes_that_are_none(text: str, small_data: Path) -> None:
    with pytest.raises(InputError, match=r"data\.cache_budget is .* like 500MB or 8GB"):
        DetectionData(str(small_data), cache="ram", cache_budget=text)


def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the machine, or what a container has left, where files in memory make way."""
    monkeypatch.setattr("boltbox.detector.data.cache.budget._CGROUPS", tmp_path)
    machine = free_memory()
    assert 0 < machine <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lay_out(
        tmp_path,
        {"memory.max": "max\n", "memory.current": "7\n", "memory.stat": "inactive_file 5\n"},
    )
    assert free_memory() > machine / 2
    lay_out(
        tmp_path,
        {
            "memory.max": "1000000\n",
            "memory.current": "300000\n",
            "memory.stat": "anon 1\ninactive_file 200000\n",
        },
    )
    assert free_memory() == 900_000


def test_without_a_budget_half_of_what_is_free(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """And with one never more than four fifths."""
    whole = opened(data, "ram")
    needed = sum(Layout.within(10**9, d.shapes(), SIZE).most_bytes for d in whole.datasets.values())
    for free, budget, full in (
        (3 * needed, None, True),
        (needed, None, False),
        (needed, needed, False),
        (2 * needed, needed, True),
    ):
        # What the first store has taken is no longer free when the second one is made.
        left = iter((free, free - whole.datasets["train"].store.nbytes))  # type: ignore[union-attr]
        monkeypatch.setattr(image_cache, "free_memory", lambda left=left: next(left))
        module = opened(data, "ram", cache_budget=budget)
        stored = [d.store.stored if d.store else 0 for d in module.datasets.values()]
        assert (stored == [8, 8]) == full, (free, budget)
