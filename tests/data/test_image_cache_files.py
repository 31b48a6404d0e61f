"""The image cache on disk: a file is found again, follows the images, and does no harm, whatever
happens to it."""

import errno
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_cache import assert_equal, batches, decoded_files, noise_data, opened, store_folder  # noqa: F401
from made_datasets import picture, save

from boltbox.detector.data import datasets
from boltbox.detector.data.cache import images as image_cache


def fill(data: Path) -> None:
    for images in opened(data, "disk").images.values():
        for i in range(len(images)):
            images.read(i)


def used(data: Path, decoded: list[str]) -> set[str]:
    """The images that are decoded although there is a cache; the batches are right in any case."""
    plain = batches(opened(data))
    decoded.clear()
    assert_equal(batches(opened(data, "disk")), plain)
    return {Path(path).name for path in decoded}


def test_a_later_training_finds_it(data: Path, cache: Path, decoded: list[str]) -> None:
    fill(data)
    before = {p: p.read_bytes() for p in cache.iterdir()}
    assert len(before) == 2
    assert not used(data, decoded)
    assert {p: p.read_bytes() for p in cache.iterdir()} == before


def rewrite(data: Path) -> None:
    save(data.parent / "images/3.png", picture(20, 60, 99))


def remove(data: Path) -> None:
    (data.parent / "images/3.png").unlink()


def add(data: Path) -> None:
    save(data.parent / "images/21.png", picture(20, 60, 99))


@pytest.mark.parametrize("change", [rewrite, remove, add])
def test_it_follows_the_images(
    change: Callable[[Path], None], data: Path, cache: Path, decoded: list[str]
) -> None:
    fill(data)
    change(data)
    assert used(data, decoded)
    fill(data)
    assert not used(data, decoded)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda block: block[: len(block) // 2],
        lambda block: bytes([block[0] ^ 1]) + block[1:],
        lambda block: b"",
        lambda block: b"foreign " * 1000,
        lambda block: bytes(len(block)),
    ],
)
def test_another_file_in_its_place_is_replaced(
    damage: Callable[[bytes], bytes], data: Path, cache: Path, decoded: list[str]
) -> None:
    fill(data)
    good = {p: p.read_bytes() for p in cache.iterdir()}
    for p, block in good.items():
        p.write_bytes(damage(block))
    assert used(data, decoded)
    fill(data)
    assert {p: p.read_bytes() for p in cache.iterdir()} == good


@pytest.mark.parametrize("at", [65, 72, 128, 129, 5000])
def test_damaged_pixels_and_checksums(at: int, data: Path, cache: Path, decoded: list[str]) -> None:
    """One image is decoded again, and stored."""
    fill(data)
    for p in cache.iterdir():
        block = bytearray(p.read_bytes())
        block[at] ^= 1
        p.write_bytes(bytes(block))
    assert len(used(data, decoded)) == 1
    assert not used(data, decoded)


def test_another_version(data: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data)
    monkeypatch.setattr(image_cache, "VERSION", image_cache.VERSION + 1)
    assert used(data, decoded)


def test_removed_while_in_use(data: Path, cache: Path) -> None:
    plain = batches(opened(data))
    module = opened(data, "disk")
    shutil.rmtree(cache)
    assert_equal(batches(module), plain)


def test_killed_while_filling(
    data: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    """The images that were read are there."""
    whole = datasets.read_image

    def kill(file: str, shrink: int = 1) -> np.ndarray:
        if Path(file).name == "5.png":
            os.kill(os.getpid(), 9)
        return whole(file, shrink)

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "read_image", kill)
        child = multiprocessing.get_context("fork").Process(target=fill, args=(data,))
        child.start()
        child.join(60)
    assert child.exitcode == -9
    again = used(data, decoded)
    assert "5.png" in again
    assert "0.png" in again, "of val"
    fill(data)
    assert not used(data, decoded)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written(
    data: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    error: int,
) -> None:
    """One line, and training goes on without."""

    def refuse(*args: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert_equal(batches(opened(data, "disk")), batches(opened(data)))
    said = capsys.readouterr().out
    assert said.count("cache:     no images (") == 1
    assert os.strerror(error) in said
    assert list(cache.iterdir()) == []
