"""A dataset in a zip file: read as its folder is, and nothing is written elsewhere."""

import shutil
import stat
import zipfile
from pathlib import Path

import label_layouts as layouts
import pytest

from boltbox.detector.data.cache import archive
from boltbox.detector.data.cache.labels import cache_folder
from boltbox.detector.data.dataset_file import DatasetFile


@pytest.fixture
def pets(here, monkeypatch):
    monkeypatch.setenv("BOLTBOX_CACHE", str(here / "cache"))
    monkeypatch.setattr(archive, "SMALL", 0)
    monkeypatch.setattr(archive, "MOST_RATIO", 2)
    return layouts.zip_file(here)


def names():
    return [Path(file).stem for file in DatasetFile.read("pets.zip").open("train").files]


def add(archive, name, content=b"", mode=0):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(info, content, zipfile.ZIP_DEFLATED)


def test_it_is_unpacked_once(pets):
    assert names() == layouts.TRAIN
    assert "unpacked from pets.zip" in DatasetFile.read("pets.zip").notes
    next(cache_folder().rglob("p0.png")).unlink()
    assert names() == layouts.TRAIN[1:], "unpacked again"
    add(pets, "pets\\more.txt")
    assert names() == layouts.TRAIN, "the changed file is not unpacked"
    assert len(list(cache_folder().rglob("pets/more.txt"))) == 1


@pytest.mark.parametrize("name", ["../out.txt", "a\\..\\..\\out.txt", "/out.txt", "link"])
def test_nothing_is_written_elsewhere(name, pets):
    add(pets, name, b"/etc/passwd", stat.S_IFLNK | 0o777 if name == "link" else 0)
    archive.unpacked(pets)
    (file,) = pets.parent.rglob("link" if name == "link" else "out.txt")
    assert file.read_text() == "/etc/passwd"
    assert not file.is_symlink()
    assert file.is_relative_to(cache_folder())


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)


def encrypt(path):
    """Says that its members are."""
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: add(path, "zeros.txt", bytes(1_000_000)),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_text("no"),
        flip,
        encrypt,
        None,
    ],
    ids=["zeros", "cut", "text", "flipped", "encrypted", "full disk"],
)
def test_what_is_refused(
    spoil,
    pets,
    monkeypatch,
    refused,
):
    if spoil:
        spoil(pets)
    else:
        usage = shutil.disk_usage(".")._replace(free=0)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "pets.zip: " in refused("doctor --data.dataset pets.zip --run run")
    assert sorted(path.name for path in Path().iterdir()) == ["cache", "pets.zip"]
    for path in (cache_folder() / "archives").iterdir():
        assert not path.is_dir()
