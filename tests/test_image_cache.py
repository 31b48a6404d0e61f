"""The image cache: training with it is training without it, within its budget, whatever happens to its files."""

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from made_datasets import PAIR, lay_out, picture, save
from torch.utils.data import DataLoader

import cli
from detector.data import datasets
from detector.data.cache import images as image_cache
from detector.data.cache import store as image_store
from detector.data.cache.budget import bytes_of, free_memory
from detector.data.cache.packed import Damaged, unpack
from detector.data.cache.store import ImageStore, Layout
from detector.data.datamodule import DetectionData
from detector.data.sample import Batch
from detector.data.transforms.augment import Augment
from detector.system.errors import InputError

SIZE = 64
SHAPES = [(30, 64), (64, 64), (48, 40), (20, 60), (90, 33), (50, 100), (128, 128), (300, 165)]  # smaller, as large, larger


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stores."""
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("detector.data.cache.folder._told", set())
    return tmp_path / "cache" / "images"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eight images of noise, with two boxes each, one of them a polygon."""
    for k, (h, w) in enumerate(SHAPES):
        save(tmp_path / f"images/{k}.{'jpg' if k > 6 else 'png'}", picture(h, w, k))
        lay_out(tmp_path, {f"labels/{k}.txt": f"{k % 2} .3 .4 .3 .5\n{(k + 1) % 2} .6 .2 .9 .3 .9 .7\n"})
    lay_out(tmp_path, {"data.yaml": "train: images\nval: images\n" + PAIR})
    return tmp_path / "data.yaml"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read, for the store or from it missing."""
    read: list[str] = []
    whole = datasets.read_image
    monkeypatch.setattr(datasets, "read_image", lambda p, *shrink: read.append(str(p)) or whole(p, *shrink))
    return read


def opened(data: Path, cache: str = "none", workers: int = 0, **options: object) -> DetectionData:
    module = DetectionData(str(data), SIZE, 3, workers, cache=cache, **options)  # type: ignore[arg-type]
    module.setup("fit")
    return module


def batches(module: DetectionData) -> list[Batch]:
    return [*module.train_dataloader(), *module.val_dataloader()]


def assert_equal(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.targets, b.targets)
        assert (a.indices, a.letterboxes) == (b.indices, b.letterboxes)


UPRIGHT = {"augment": Augment(mosaic=0.6, mixup=0.4)}  # drawn at once, from JPEG files that are decoded smaller
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
    """Images smaller, as large and larger than the network's input; training resizes in another way than validation."""
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
        runs.append(torch.load(f"run{len(runs)}/checkpoints/last.ckpt", weights_only=True)["state_dict"])
    assert all(torch.equal(v, run[k]) for run in runs[1:] for k, v in runs[0].items())
    said = capsys.readouterr().out
    assert "train: 24 of 24 images cached in memory (0.3 MB)" in said
    assert "; there is no room for more)" in said


# ---- By itself


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
        monkeypatch.setattr(f"detector.data.cache.{module}.free_memory", lambda: free)
    cli.main(["fit", "--data.dataset", str(small_data), *SMALL, *options])
    told = capsys.readouterr().out
    assert said in told
    assert ("cached" in told) == bool(said)


# ---- The budget


def test_never_a_byte_more_than_the_budget(data: Path, cache: Path, capsys: pytest.CaptureFixture) -> None:
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
            assert s is None or [s.read(i) is not None for i in range(8)] == [True] * k + [False] * (8 - k)
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
    assert whole.shapes.tolist() == [[20, 10], [20, 20], [15, 20]]  # the longer side becomes 20 pixels
    assert whole.starts.tolist() == [0, 600, 1800, 2700]
    assert len(Layout.within(whole.most_bytes, sizes, 20).shapes) == 3
    assert len(Layout.within(whole.most_bytes - 1, sizes, 20).shapes) == 2
    assert len(Layout.within(0, sizes, 20).shapes) == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [(1000, 1000), ("1000", 1000), ("2kb", 2000), ("7.5 GB", 75 * 10**8), ("1GiB", 2**30), ("3TB", 3 * 10**12)],
)
def test_bytes(text: int | str, number: int) -> None:
    assert bytes_of("data.cache_budget", text) == number


@pytest.mark.parametrize("text", ["much", "-1", "0", "8 G", "GB", "", "1e9"])
def test_bytes_that_are_none(text: str, small_data: Path) -> None:
    with pytest.raises(InputError, match=r"data\.cache_budget is .* like 500MB or 8GB"):
        DetectionData(str(small_data), cache="ram", cache_budget=text)


def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the machine, or what a container has left, where files in memory make way."""
    monkeypatch.setattr("detector.data.cache.budget._CGROUPS", tmp_path)
    machine = free_memory()
    assert 0 < machine <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lay_out(tmp_path, {"memory.max": "max\n", "memory.current": "7\n", "memory.stat": "inactive_file 5\n"})
    assert free_memory() > machine / 2
    lay_out(
        tmp_path, {"memory.max": "1000000\n", "memory.current": "300000\n", "memory.stat": "anon 1\ninactive_file 200000\n"}
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


# ---- On disk


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


def test_a_larger_budget_leaves_what_is_complete(data: Path, cache: Path, decoded: list[str]) -> None:
    for budget in (10**6, None, 2 * 10**6):
        decoded.clear()
        opened(data, "disk", cache_budget=budget)
        assert bool(decoded) == (budget == 10**6)


def rewrite(data: Path) -> None:
    save(data.parent / "images/3.png", picture(20, 60, 99))


def remove(data: Path) -> None:
    (data.parent / "images/3.png").unlink()


def add(data: Path) -> None:
    save(data.parent / "images/21.png", picture(20, 60, 99))


@pytest.mark.parametrize(
    ("change", "words"), [(rewrite, "images/3.png changed"), (remove, "list of images"), (add, "list of images")]
)
def test_it_follows_the_images(
    change: Callable[[Path], None], words: str, data: Path, decoded: list[str], capsys: pytest.CaptureFixture
) -> None:
    opened(data, "disk")
    change(data)
    capsys.readouterr()
    assert refilled(data, decoded)
    said = [line for line in capsys.readouterr().out.splitlines() if "image cache" in line]
    assert len(said) == 2
    assert all(words in line for line in said)
    assert not refilled(data, decoded)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda block: block[: len(block) // 2], "it is cut or damaged"),
        (lambda block: block[:-50] + bytes([block[-50] ^ 1]) + block[-49:], "it is cut or damaged"),
        (lambda block: b"", "it is cut or damaged"),
        (lambda block: b"foreign " * 1000, "it is cut or damaged"),
        (lambda block: b"\0" * 1000, "it is not one of boltbox's files"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_good_is_replaced(
    spoil: Callable[[bytes], bytes], words: str, data: Path, cache: Path, decoded: list[str], capsys: pytest.CaptureFixture
) -> None:
    opened(data, "disk")
    good = {p: p.read_bytes() for p in cache.iterdir()}
    for p, block in good.items():
        p.write_bytes(spoil(block))
    assert refilled(data, decoded)
    assert words in capsys.readouterr().out
    assert {p: p.read_bytes() for p in cache.iterdir()} == good


def test_damaged_pixels_are_read_from_the_file(data: Path, cache: Path, decoded: list[str]) -> None:
    """Only their own image's."""
    opened(data, "disk")
    for p in cache.iterdir():
        block = bytearray(p.read_bytes())
        block[30 * 64 * 3 + 5] ^= 1  # in the second image
        p.write_bytes(bytes(block))
    assert not refilled(data, decoded)
    assert {Path(p).name for p in decoded} >= {"1.png"}


def test_another_version(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    opened(data, "disk")
    monkeypatch.setattr(image_cache, "VERSION", image_cache.VERSION + 1)
    opened(data, "disk")
    assert "image cache of train rebuilt because it was written by another version" in capsys.readouterr().out


def test_removed_while_in_use(data: Path, cache: Path) -> None:
    plain = batches(opened(data))
    module = opened(data, "disk")
    shutil.rmtree(cache)
    assert_equal(batches(module), plain)


def test_interrupted_while_filling(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[str]) -> None:
    """By an error nothing is left. By SIGKILL an unfinished file is left, which nobody takes for a store; it goes in time."""

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


def test_a_full_disk(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
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
    """Nothing in the folder can be made, removed or written any more: as os says it, since the tests may run as root."""

    def lock() -> None:
        def refuse(*args: object, **kwargs: object) -> None:
            raise PermissionError(13, "Permission denied", str(cache))

        for target in (
            "detector.data.cache.images.write_beside",
            "detector.data.cache.labels.write_beside",
            "pathlib.Path.unlink",
        ):
            monkeypatch.setattr(target, refuse)

    return lock


def test_a_read_only_folder_serves(data: Path, cache: Path, decoded: list[str], read_only: Callable[[], None]) -> None:
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
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("images are not cached")]
    assert len(said) == 1
    assert "Permission denied" in said[0]


def test_a_stale_store_in_a_read_only_folder_is_not_used(data: Path, cache: Path, read_only: Callable[[], None]) -> None:
    opened(data, "disk")
    rewrite(data)
    plain = batches(opened(data))
    read_only()
    assert_equal(batches(opened(data, "disk")), plain)


# ---- Images that cannot be stored


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


def test_an_image_that_changes_while_it_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """The file is what its description says; what is not there, or has another shape, is left out."""
    files = [str(save(tmp_path / f"{k}.png", picture(h, w, k))) for k, (h, w) in enumerate(SHAPES[:3])]
    layout = Layout.within(10**6, np.array(SHAPES[:3]), SIZE)
    with open(tmp_path / "store", "w+b") as file:
        given = [picture(30, 64, 0), None, picture(64, 54, 2)]  # 40 * 64 / 48 = 53.3
        assert list(image_store.fill(file.fileno(), files, layout, given.__getitem__, {"any": "thing"})) == [3]
    block = (tmp_path / "store").read_bytes()
    assert len(block) <= layout.most_bytes
    assert block[: 30 * 64 * 3] == picture(30, 64, 0).tobytes()
    assert block[(30 + 64) * 64 * 3 :][: 64 * 54 * 3] == picture(64, 54, 2).tobytes()
    length = int.from_bytes(block[-8:], "little")
    about, arrays = unpack(block[-8 - length : -8])
    assert about == {"any": "thing"}
    assert arrays["shapes"].tolist() == [[30, 64], [0, 0], [64, 54]]
