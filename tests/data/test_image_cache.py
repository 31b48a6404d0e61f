"""The image cache: training with it is training without it; what its stores hold, and what they
cannot hold."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from made_cache import (  # noqa: F401
    assert_equal,
    batches,
    decoded_files,
    noise_data,
    opened,
    store_folder,
)
from made_datasets import lay_out, picture, save

import cli
from boltbox.detector.data.cache import images as image_cache
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.system import operating_system
from boltbox.detector.system.errors import InputError

# drawn at once, from JPEG files that are decoded smaller
UPRIGHT = {"augment": Augment(mosaic=0.6, mixup=0.4)}
TURNED = {"augment": Augment(degrees=10, mosaic=0.6, mixup=0.4, copy_paste=0.5)}
RECT = {"rect": True}


@pytest.mark.parametrize(
    ("plan", "cache", "workers"),
    [
        (UPRIGHT, "ram", 2),
        (UPRIGHT, "disk", 0),
        (TURNED, "ram", 0),
        (TURNED, "disk", 2),
        (RECT, "ram", 0),
        (RECT, "disk", 0),
    ],
    ids=["upright-ram-2", "upright-disk", "turned-ram", "turned-disk-2", "rect-ram", "rect-disk"],
)
def test_batches_are_the_same_bit_for_bit(
    data: Path, cache: str, workers: int, plan: dict[str, object], decoded: list[str]
) -> None:
    """Images smaller, as large and larger than the network's input; training resizes in another way
    than validation. Once with images that are decoded, once with stored ones."""
    plain = batches(opened(data, **plan))
    module = opened(data, cache, workers, **plan)
    assert_equal(batches(module), plain)
    decoded.clear()
    assert_equal(batches(module), plain)
    module.workers = 0
    assert_equal(batches(module), plain)
    assert decoded == [], "every image, partners of a mosaic too, comes from the store"


def test_weights_are_the_same(small_data: Path, here: Path, capsys: pytest.CaptureFixture) -> None:
    """Through the front door."""
    line = ["fit", "--data.dataset", str(small_data), "--data.image_size", "64", "--data.batch_size", "8",
            "--data.workers", "0", "--model.network.width_multiple", "0.125", "--trainer.max_epochs", "1",
            "--trainer.enable_progress_bar", "false", "--report.enabled", "false", "--pictures.enabled", "false",
            "--trainer.precision", "32-true",
            "--trainer.accelerator", "cpu"]  # fmt: skip
    runs = []
    line += ["--model.network.depth_multiple", "0.1", "--autoanchor.enabled", "false"]
    line += ["--model.network.levels", "[5]", "--doctor.enabled", "false"]
    for options in (
        ["--data.cache", "none"],
        ["--data.cache", "ram"],
        ["--data.cache", "disk"],
    ):
        cli.main([*line, "--run", f"run{len(runs)}", *options])
        runs.append(
            torch.load(f"run{len(runs)}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        )
    assert all(torch.equal(v, run[k]) for run in runs[1:] for k, v in runs[0].items())
    said = capsys.readouterr().out
    assert "cache:     train images in memory (0.3 MB)" in said


def test_an_image_that_cannot_be_decoded(data: Path, tmp_path: Path) -> None:
    """Its header is fine, its pixels are not; the rest is cached."""
    file = tmp_path / "images/8.png"
    block = save(file, picture(40, 40)).read_bytes()
    file.write_bytes(block[:60])
    lay_out(tmp_path, {"labels/8.txt": "0 .5 .5 .5 .5"})
    images = opened(data, "ram").images["train"]
    for i in range(8):
        images.read(i)
    with pytest.raises(InputError, match=r"8\.png: this image cannot be decoded"):
        images.read(8)
    assert images.store
    assert np.count_nonzero(images.store.checks) == 8


def test_a_store_cannot_be_changed(data: Path) -> None:
    images = opened(data, "ram").images["train"]
    images.read(0)
    with pytest.raises(ValueError, match="read-only"):
        images.read(0)[:] = 0
    images[0].image.render()[:] = 0  # a sample's image is its own
    assert np.array_equal(images[0].image.render(), picture(30, 64, 0))


@pytest.mark.parametrize(
    ("cache", "free", "cached"),
    [
        ("auto", 4.01, True),
        ("auto", 3.99, False),
        ("ram", 2.01, True),
        ("ram", 1.99, False),
        ("none", 100, False),
    ],
)
def test_in_memory_if_there_is_room(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    cache: str,
    free: float,
    cached: bool,
) -> None:
    size = sum(image_cache.store_bytes(x.labels.sizes) for x in opened(data).images.values())
    monkeypatch.setattr(image_cache, "free_memory", lambda: int(free * size))
    module = opened(data, cache)
    assert all(bool(images.store) == cached for images in module.images.values())
    said = capsys.readouterr().out
    assert ("cache:     no images (" in said) == (not cached and cache != "none")


def test_disk_without_room(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """What is there already needs none."""

    def full(folder: Path) -> shutil._ntuple_diskusage:
        return shutil._ntuple_diskusage(0, 0, 0)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", full)
        opened(data, "disk")
        assert "cache:     no images (" in capsys.readouterr().out
        assert list(cache.iterdir()) == []
    opened(data, "disk")
    monkeypatch.setattr(shutil, "disk_usage", full)
    assert all(images.store for images in opened(data, "disk").images.values())


def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the machine, or the limit of a container."""
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(operating_system, "MEMORY_LIMIT", limit)
    machine = operating_system.free_memory()
    assert 0 < machine <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit.write_text("max\n")
    assert operating_system.free_memory() > machine / 2
    limit.write_text("1000000\n")
    assert operating_system.free_memory() == 1_000_000
