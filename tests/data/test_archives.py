"""A data set in a zip file: read as its folder is, and nothing is written elsewhere."""

import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import label_layouts as layouts
import pytest

import cli
from boltbox.detector.data.cache import archive
from boltbox.detector.data.cache.labels import cache_folder
from boltbox.detector.data.dataset_file import DatasetFile


@pytest.fixture
def pets(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOLTBOX_CACHE", str(here / "cache"))
    return layouts.zip_file(here)


def names(split: str = "train") -> list[str]:
    return [Path(file).stem for file in DatasetFile.read("pets.zip").open(split).files]


def test_it_is_unpacked_once(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names() == layouts.TRAIN
    image = next(cache_folder().rglob("p0.png"))
    image.unlink()
    assert names() == layouts.TRAIN[1:], "unpacked again"
    with zipfile.ZipFile(pets, "a") as file:
        file.writestr("pets/more.txt", "")
    assert names() == layouts.TRAIN, "the changed file is not unpacked"
    cli.main(["doctor", "--data.dataset", "pets.zip", "--run", "run"])
    told = capsys.readouterr().out
    assert "unpacked from pets.zip" in told
    assert str(cache_folder()) in told


def member(name: str, mode: int = 0) -> Callable[[Path], None]:
    """Adds a member of this name and kind."""

    def add(path: Path) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(info, "/etc/passwd")

    return add


def zeros(path: Path) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.txt", bytes(1_000_000))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)


def encrypt(path: Path) -> None:
    """Says that its members are."""
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["../out.txt", "a\\..\\..\\out.txt", "/out.txt", "link"])
def test_nothing_is_written_elsewhere(name: str, pets: Path) -> None:
    member(name, stat.S_IFLNK | 0o777 if name == "link" else 0)(pets)
    assert "p0" in names()
    for file in [*pets.parent.rglob("out.txt"), *pets.parent.rglob("link")]:
        assert file.read_text() == "/etc/passwd"
        assert not file.is_symlink()
        assert file.is_relative_to(cache_folder())


@pytest.mark.parametrize("spoil", [zeros, cut, flip, encrypt, lambda path: path.write_text("no")])
def test_what_is_refused(
    spoil: Callable[[Path], None],
    pets: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(archive, "SMALL", 0)
    monkeypatch.setattr(archive, "MOST_RATIO", 2)
    spoil(pets)
    assert refused() == ["cache", "pets.zip"]
    assert capsys.readouterr().err.startswith("error: pets.zip: ")
    assert not [path for path in (cache_folder() / "archives").iterdir() if path.is_dir()]


def refused() -> list[str]:
    """What the current folder holds when the doctor has refused the file."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(["doctor", "--data.dataset", "pets.zip", "--run", "run"])
    assert leaving.value.code == 2
    return sorted(path.name for path in Path().iterdir())


def test_more_than_the_disk_takes(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(".")._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    refused()


def test_photos_without_labels(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = layouts.labelimg(here / "pets")
    for file in folder.glob("*.txt"):
        file.unlink()
    with pytest.raises(SystemExit) as leaving:
        cli.main(["fit", "--data.dataset", "pets", "--run", "run"])
    assert leaving.value.code == 2
    told = capsys.readouterr().err
    assert "pets: 6 images without labels" in told
    assert "docs/data.md" in told
