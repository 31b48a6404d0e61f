"""The image cache on disk: a file is found again, follows the images, and does no harm, whatever
happens to it."""

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


def refilled(data: Path, decoded: list[str]) -> bool:
    """Whether the stores are made anew; they hold the images as they are now in any case."""
    decoded.clear()
    module = opened(data, "disk")
    filled = len(decoded) > 0
    assert_equal(batches(module), batches(opened(data)))
    return filled


def test_a_later_training_finds_it(data: Path, cache: Path, decoded: list[str]) -> None:
    assert refilled(data, decoded)
    before = {p: p.read_bytes() for p in cache.iterdir()}
    assert len(before) == 2
    assert not refilled(data, decoded)
    assert {p: p.read_bytes() for p in cache.iterdir()} == before


def rewrite(data: Path) -> None:
    save(data.parent / "images/3.png", picture(20, 60, 99))


def remove(data: Path) -> None:
    (data.parent / "images/3.png").unlink()


def add(data: Path) -> None:
    save(data.parent / "images/21.png", picture(20, 60, 99))


@pytest.mark.parametrize(
    "change",
    [rewrite, remove, add],
)
def test_it_follows_the_images(
    change: Callable[[Path], None],
    data: Path,
    decoded: list[str],
    capsys: pytest.CaptureFixture,
) -> None:
    opened(data, "disk")
    change(data)
    capsys.readouterr()
    assert refilled(data, decoded)
    said = [line for line in capsys.readouterr().out.splitlines() if "image cache" in line]
    assert len(said) == 2
    assert not refilled(data, decoded)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda block: block[: len(block) // 2],
        lambda block: bytes([block[0] ^ 1]) + block[1:],
        lambda block: b"",
        lambda block: b"foreign " * 1000,
        lambda block: bytes(len(block)),
    ],
)
def test_a_file_that_is_no_good_is_replaced(
    spoil: Callable[[bytes], bytes],
    data: Path,
    cache: Path,
    decoded: list[str],
    capsys: pytest.CaptureFixture,
) -> None:
    opened(data, "disk")
    good = {p: p.read_bytes() for p in cache.iterdir()}
    for p, block in good.items():
        p.write_bytes(spoil(block))
    assert refilled(data, decoded)
    assert "image cache of train rebuilt" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in cache.iterdir()} == good


@pytest.mark.parametrize("at", [33, 40, 96, 97, 5000])
def test_a_damaged_file_is_not_believed(at: int, data: Path, cache: Path) -> None:
    """Neither checksums nor pixels."""
    opened(data, "disk")
    plain = batches(opened(data))
    for p in cache.iterdir():
        block = bytearray(p.read_bytes())
        block[at] ^= 1
        p.write_bytes(bytes(block))
    assert_equal(batches(opened(data, "disk")), plain)


def test_damaged_pixels_are_read_from_the_file(data: Path, cache: Path, decoded: list[str]) -> None:
    """Only their own image's."""
    opened(data, "disk")
    for p in cache.iterdir():
        block = bytearray(p.read_bytes())
        block[32 + 8 * 8 + 30 * 64 * 3 + 5] ^= 1  # in the second image
        p.write_bytes(bytes(block))
    assert not refilled(data, decoded)
    assert {Path(p).name for p in decoded} >= {"1.png"}


def test_another_version(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    opened(data, "disk")
    monkeypatch.setattr(image_cache, "VERSION", image_cache.VERSION + 1)
    opened(data, "disk")
    assert "image cache of train rebuilt" in capsys.readouterr().out


def test_removed_while_in_use(data: Path, cache: Path) -> None:
    plain = batches(opened(data))
    module = opened(data, "disk")
    shutil.rmtree(cache)
    assert_equal(batches(module), plain)


def test_interrupted_while_filling(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]
) -> None:
    """By an error nothing is left. By SIGKILL an unfinished file is left, which nobody takes for a
    store; it goes in time."""

    def crash(file: str, shrink: int = 1) -> np.ndarray:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "read_image", crash)
        with pytest.raises(KeyboardInterrupt):
            opened(data, "disk")
    assert list(cache.iterdir()) == []

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "read_image", lambda file, shrink=1: os.kill(os.getpid(), 9))
        child = multiprocessing.get_context("fork").Process(target=opened, args=(data, "disk"))
        child.start()
        child.join(60)
    assert child.exitcode == -9
    (left,) = cache.iterdir()
    assert refilled(data, decoded)
    assert left.exists(), "it might be that of a process that is alive"
    os.utime(left, (0, 0))
    rewrite(data)
    assert refilled(data, decoded)
    assert not left.exists()


def test_a_full_disk(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """One line, and training goes on without."""
    monkeypatch.setattr(os, "pwrite", lambda descriptor, block, at: 1)
    module = opened(data, "disk")
    assert_equal(batches(module), batches(opened(data)))
    assert [line for line in capsys.readouterr().out.splitlines() if "cached" in line] == [
        "images are not cached (No space left on device); BOLTBOX_CACHE may name another folder"
    ]
    assert list(cache.iterdir()) == []


@pytest.fixture
def read_only(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing in the folder can be made, removed or written any more: as os says it, since the
    tests may run as root."""

    def lock() -> None:
        def refuse(*args: object, **kwargs: object) -> None:
            raise PermissionError(13, "Permission denied", str(cache))

        for target in (
            "boltbox.detector.data.cache.images.write_beside",
            "boltbox.detector.data.cache.labels.write_beside",
            "boltbox.detector.data.cache.images.remove",
        ):
            monkeypatch.setattr(target, refuse)

    return lock


def test_a_read_only_folder_serves(
    data: Path, cache: Path, decoded: list[str], read_only: Callable[[], None]
) -> None:
    opened(data, "disk")
    read_only()
    assert not refilled(data, decoded)


def test_a_read_only_folder_without_a_store(
    data: Path, cache: Path, read_only: Callable[[], None], capsys: pytest.CaptureFixture
) -> None:
    """Or with one that is out of date."""
    read_only()
    for change in (lambda data: None, rewrite):
        change(data)
        assert_equal(batches(opened(data, "disk")), batches(opened(data)))
    said = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("images are not cached")
    ]
    assert len(said) == 1
    assert "Permission denied" in said[0]


def test_a_stale_store_in_a_read_only_folder_is_not_used(
    data: Path, cache: Path, read_only: Callable[[], None]
) -> None:
    opened(data, "disk")
    rewrite(data)
    plain = batches(opened(data))
    read_only()
    assert_equal(batches(opened(data, "disk")), plain)
