"""The image cache: training with it is training without it; a store follows the images, and does no
harm, whatever happens to it."""

import errno
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from made_datasets import image_set, lay_out, picture, save
from made_runs import contents

from boltbox.detector.data.cache import images as image_cache
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.transforms.augment import Augment
from boltbox.detector.system import operating_system
from boltbox.detector.system.errors import InputError

# smaller, as large, larger
SHAPES = [(30, 64), (64, 64), (48, 40), (20, 60), (90, 33), (50, 100), (128, 128), (300, 165)]
# drawn at once, from JPEG files that are decoded smaller
UPRIGHT = {"augment": Augment(mosaic=0.6, mixup=0.4)}
TURNED = {"augment": Augment(degrees=10, mosaic=0.6, mixup=0.4, copy_paste=0.5)}
RECT = {"rect": True}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of the stores."""
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


@pytest.fixture
def data(tmp_path):
    """Eight images of noise, with two boxes each, one of them a polygon."""
    pictures = []
    texts = []
    for k, (h, w) in enumerate(SHAPES):
        pictures.append(picture(h, w, k))
        texts.append(f"{k % 2} .3 .4 .3 .5\n{(k + 1) % 2} .6 .2 .9 .3 .9 .7\n")
    save(tmp_path / "images/7.jpg", pictures[7])
    path = image_set(tmp_path, pictures, texts)
    (tmp_path / "images/7.png").unlink()
    return path


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that this process has read."""
    names = []
    whole = image_cache.read_image

    def read(path, *shrink):
        names.append(Path(path).name)
        return whole(path, *shrink)

    monkeypatch.setattr(image_cache, "read_image", read)
    return names


def opened(data, cache="none", workers=0, **options):
    module = DetectionData(str(data), 64, 3, workers, cache=cache, **options)
    module.setup("fit")
    return module


def batches(module):
    return list(module.train_dataloader()) + list(module.val_dataloader())


def assert_equal(ours, reference):
    assert len(ours) == len(reference) > 0
    for a, b in zip(ours, reference, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.targets, b.targets)
        assert (a.indices, a.letterboxes) == (b.indices, b.letterboxes)


@pytest.mark.parametrize(
    ("options", "cache", "workers"),
    [(UPRIGHT, "ram", 2), (UPRIGHT, "disk", 0), (TURNED, "disk", 0), (RECT, "ram", 0)],
)
def test_batches_are_the_same(data, cache, workers, options, decoded):
    """Bit for bit. Training resizes in another way than validation. Once with images that are
    decoded, once with stored ones."""
    plain = opened(data, **options)
    first = batches(plain)
    second = batches(plain)
    module = opened(data, cache, workers, **options)
    assert_equal(batches(module), first)
    decoded.clear()
    module.workers = 0
    assert_equal(batches(module), second)
    assert decoded == [], "every image, partners of a mosaic too, comes from the store"


def test_a_store(data, tmp_path):
    """It cannot be changed by a reader; a process that it is sent to maps the same memory; an image
    that cannot be decoded is not in it."""
    block = save(tmp_path / "images/8.png", picture(40, 40)).read_bytes()
    (tmp_path / "images/8.png").write_bytes(block[:60])
    lay_out(tmp_path, {"labels/8.txt": "0 .5 .5 .5 .5"})
    images = opened(data, "ram").images["train"]
    assert images.shrinks.tolist() == [1, 1, 1, 1, 1, 1, 2, 4, 1], "JPEG files, if large enough"
    copy = pickle.loads(pickle.dumps(images.store))
    for i in range(8):
        assert copy.read(i) is None
        pixels = images.read(i)
        assert np.array_equal(copy.read(i), pixels)
    with pytest.raises(InputError, match="cache is 'memory'"):
        opened(data, "memory")
    with pytest.raises(InputError, match=r"8\.png: this image cannot be decoded"):
        images.read(8)
    assert np.count_nonzero(copy.checks) == 8
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
        ("disk", 1.99, False),
    ],
)
def test_if_there_is_room(
    data,
    monkeypatch,
    capsys,
    cache,
    free,
    cached,
):
    """What is on the disk already needs none."""
    size = sum(image_cache.store_bytes(x.sizes) for x in opened(data).images.values())
    usage = shutil.disk_usage(".")._replace(free=int(free * size))
    monkeypatch.setattr(image_cache, "free_memory", lambda: usage.free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    module = opened(data, cache)
    for images in module.images.values():
        assert bool(images.store) == cached
    output = capsys.readouterr().out
    assert ("cache:     no images (" in output) == (not cached)
    usage = usage._replace(free=0)
    assert bool(opened(data, cache).images["val"].store) == (cached and cache == "disk")


def test_free_memory(tmp_path, monkeypatch):
    """That of the machine, or the limit of a container or job."""
    monkeypatch.setattr(operating_system, "GROUPS", tmp_path)
    machine = operating_system.free_memory()
    assert 0 < machine <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/docker/7\n0::/job/step\n")
    monkeypatch.setattr(operating_system, "GROUPS_OF_PROCESS", groups)
    (tmp_path / "memory.max").write_text("max\n")
    assert operating_system.free_memory() > machine / 2
    for limit in ("memory/memory.limit_in_bytes", "job/memory.max"):
        file = tmp_path / limit
        file.parent.mkdir()
        file.write_text(f"{len(limit)}\n")
        assert operating_system.free_memory() == len(limit)


def fill(data):
    for images in opened(data, "disk").images.values():
        for i in range(len(images)):
            images.read(i)


def used(data, decoded):
    """The images that are decoded although there is a cache; the batches are right in any case."""
    plain = batches(opened(data))
    decoded.clear()
    assert_equal(batches(opened(data, "disk")), plain)
    return set(decoded)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: save(root / "images/3.png", picture(20, 60, 99)),
        lambda root: (root / "images/3.png").unlink(),
        lambda root: save(root / "images/21.png", picture(20, 60, 99)),
    ],
    ids=["changed", "removed", "added"],
)
def test_it_follows_the_images(change, data, cache, decoded):
    """A later training finds what an earlier one wrote, until an image changes."""
    fill(data)
    before = contents(cache)
    assert not used(data, decoded)
    assert contents(cache) == before
    change(data.parent)
    assert used(data, decoded)
    fill(data)
    assert not used(data, decoded)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda block: block[: len(block) // 2], None),
        (lambda block: b"foreign " * 1000, None),
        (lambda block: bytes([block[0] ^ 1]) + block[1:], 1),  # a checksum
        (lambda block: block[:65] + bytes([block[65] ^ 1]) + block[66:], 1),  # pixels
    ],
    ids=["cut", "foreign", "checksum", "pixels"],
)
def test_damage(
    damage,
    lost,
    data,
    cache,
    decoded,
):
    """An image that is not whole is decoded again, and stored."""
    fill(data)
    good = contents(cache)
    for path, block in good.items():
        (cache / path).write_bytes(damage(block))
    names = used(data, decoded)
    assert len(names) == lost if lost else names
    fill(data)
    assert contents(cache) == good


def test_killed_while_filling(data, cache, monkeypatch, decoded):
    """The images that were read are there. The folder may be removed while it is in use."""
    whole = image_cache.read_image

    def kill(file, shrink=1):
        if Path(file).name == "5.png":
            os.kill(os.getpid(), 9)
        return whole(file, shrink)

    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "read_image", kill)
        child = multiprocessing.get_context("fork").Process(target=fill, args=(data,))
        child.start()
        child.join(240)
    assert child.exitcode == -9
    images = opened(data, "disk").images["train"]
    decoded.clear()
    for i in range(len(images)):
        images.read(i)
    assert decoded == ["5.png", "6.png", "7.jpg"]
    module = opened(data, "disk")
    shutil.rmtree(cache)
    assert_equal(batches(module), batches(opened(data)))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written(
    data,
    cache,
    monkeypatch,
    capsys,
    error,
):
    """One line, and training continues without."""

    def refuse(*args):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert_equal(batches(opened(data, "disk")), batches(opened(data)))
    assert os.strerror(error) in capsys.readouterr().out
    assert list(cache.iterdir()) == []
