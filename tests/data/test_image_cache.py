"""The image cache: training with it is training without it; what its stores hold, and what they
cannot hold."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from made_cache import (  # noqa: F401
    SHAPES,
    SIZE,
    assert_equal,
    batches,
    decoded_files,
    noise_data,
    opened,
    store_folder,
)
from made_datasets import lay_out, picture, save
from torch.utils.data import DataLoader

import cli
from boltbox.detector.data import datasets
from boltbox.detector.data.cache import store as image_store
from boltbox.detector.data.cache.packed import Damaged, unpack
from boltbox.detector.data.cache.store import ImageStore, Layout
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.system.errors import InputError

# drawn at once, from JPEG files that are decoded smaller
UPRIGHT = {"augment": Augment(mosaic=0.6, mixup=0.4)}
TURNED = {"augment": Augment(degrees=10, mosaic=0.6, mixup=0.4, copy_paste=0.5)}
PLANS: list[dict[str, object]] = [
    UPRIGHT,
    {**UPRIGHT, "partners": "batch"},
    {**UPRIGHT, "resample_once": False},
    TURNED,
    {"rect": True},
]


@pytest.mark.parametrize("cache", ["ram", "disk"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("plan", PLANS, ids=["upright", "batch", "canvas", "turned", "rect"])
def test_batches_are_the_same_bit_for_bit(
    data: Path, cache: str, workers: int, plan: dict[str, object], decoded: list[str]
) -> None:
    """Images smaller, as large and larger than the network's input; training resizes in another way
    than validation."""
    plain = batches(opened(data, **plan))
    module = opened(data, cache, workers, **plan)
    decoded.clear()
    assert_equal(batches(module), plain)
    assert decoded == [], "every image, partners of a mosaic too, comes from the store"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(data: Path, method: str) -> None:
    """They get the open file, not a copy of what is in it."""
    dataset = opened(data, "ram").datasets["train"]
    wanted = list(zip(range(8), dataset, strict=False))
    shutil.rmtree(data.parent / "images")
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context=method)
    for (_, theirs), ours in zip(wanted, loader, strict=True):
        assert np.array_equal(ours.image, theirs.image)
        assert np.array_equal(ours.boxes, theirs.boxes)


def test_weights_are_the_same(small_data: Path, here: Path, capsys: pytest.CaptureFixture) -> None:
    """Through the front door."""
    line = ["fit", "--data.dataset", str(small_data), "--data.image_size", "64", "--data.batch_size", "8",
            "--data.workers", "0", "--model.width_multiple", "0.125", "--trainer.max_epochs", "1",
            "--trainer.enable_progress_bar", "false", "--report.enabled", "false", "--pictures.enabled", "false",
            "--trainer.precision", "32-true",
            "--trainer.accelerator", "cpu"]  # fmt: skip
    runs = []
    for options in (
        ["--data.cache", "none"],
        ["--data.cache", "ram"],
        ["--data.cache", "disk", "--data.cache_budget", "200KB"],
    ):
        cli.main([*line, "--run", f"run{len(runs)}", *options])
        runs.append(
            torch.load(f"run{len(runs)}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        )
    assert all(torch.equal(v, run[k]) for run in runs[1:] for k, v in runs[0].items())
    said = capsys.readouterr().out
    assert "train: 24 of 24 images cached in memory (0.3 MB)" in said
    assert "; there is no room for more)" in said


def test_an_image_that_cannot_be_decoded_is_told_by_the_loader(data: Path, tmp_path: Path) -> None:
    """Its header is fine, its pixels are not; the rest is cached."""
    file = tmp_path / "images/8.png"
    block = save(file, picture(40, 40)).read_bytes()
    file.write_bytes(block[:60])
    lay_out(tmp_path, {"labels/8.txt": "0 .5 .5 .5 .5"})
    dataset = opened(data, "ram").datasets["train"]
    assert len(dataset) == 9
    assert dataset.store is not None
    assert dataset.store.stored == 8
    with pytest.raises(InputError, match=r"8\.png: this image cannot be decoded"):
        dataset[8]


def test_an_image_that_changes_while_it_is_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = datasets.read_image

    def slow(file: str, shrink: int = 1) -> np.ndarray:
        image = whole(file, shrink)
        if Path(file).name == "2.png":
            save(Path(file), picture(48, 40, 77))
        return image

    monkeypatch.setattr(datasets, "read_image", slow)
    dataset = opened(data, "ram").datasets["train"]
    assert dataset.store is not None
    assert [dataset.store.read(i) is None for i in range(8)] == [i == 2 for i in range(8)]
    assert np.array_equal(dataset[2].image, picture(48, 40, 77))


def test_a_store_in_memory_cannot_be_changed(data: Path) -> None:
    """Not even by a process that opens it for writing."""
    store = opened(data, "ram").datasets["train"].store
    assert store is not None
    descriptor = os.open(store.path(), os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
    image = store.read(0)
    assert image is not None
    with pytest.raises(ValueError, match="read-only"):
        image[:] = 0
    assert np.array_equal(image, picture(30, 64, 0))
    assert store.read(-1) is None
    module = opened(data, "ram")
    module.datasets["train"][0].image[:] = 0  # a sample's image is its own
    assert np.array_equal(module.datasets["train"][0].image, picture(30, 64, 0))


def test_a_block_of_something_else_is_no_store(tmp_path: Path) -> None:
    for block in (b"", b"abc", b"\xff" * 40):
        (tmp_path / "x").write_bytes(block)
        with pytest.raises(Damaged):
            ImageStore(os.open(tmp_path / "x", os.O_RDONLY))


def test_filled_by_hand(tmp_path: Path) -> None:
    """The file is what its description says; what is not there, or has another shape, is left
    out."""
    files = [
        str(save(tmp_path / f"{k}.png", picture(h, w, k))) for k, (h, w) in enumerate(SHAPES[:3])
    ]
    layout = Layout.within(10**6, np.array(SHAPES[:3]), SIZE)
    with open(tmp_path / "store", "w+b") as file:
        given = [picture(30, 64, 0), None, picture(64, 54, 2)]  # 40 * 64 / 48 = 53.3
        assert list(
            image_store.fill(file.fileno(), files, layout, given.__getitem__, {"any": "thing"})
        ) == [3]
    block = (tmp_path / "store").read_bytes()
    assert len(block) <= layout.most_bytes
    assert block[: 30 * 64 * 3] == picture(30, 64, 0).tobytes()
    assert block[(30 + 64) * 64 * 3 :][: 64 * 54 * 3] == picture(64, 54, 2).tobytes()
    length = int.from_bytes(block[-8:], "little")
    about, arrays = unpack(block[-8 - length : -8])
    assert about == {"any": "thing"}
    assert arrays["shapes"].tolist() == [[30, 64], [0, 0], [64, 54]]
