"""Files of weights with a flipped bit, or with sizes that they do not have: refused by every
reader, before memory is taken."""

import io
import multiprocessing
import pickle
import random
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from made_backbones import BACKBONE, RESNET
from made_networks import small, yolov5_converter  # noqa: F401
from small_fit import SMALL, small_fit
from test_yolox_weights import write, yolox
from torch import Tensor
from weight_files import read_yolov5, read_yolox

import cli
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.timm import read_tensors
from boltbox.detector.weights.torch_file import load_torch_file
from boltbox.detector.weights.trained import read_trained

NAMES = ["disc", "ring", "star", "triangle", "cross"]
SAVED = {"state_dict": {"a.weight": torch.zeros(3)}}


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, not to be written to, of a network that finds nothing: so an export has no ties
    to compare."""
    run = tmp_path_factory.mktemp("trained") / "run"
    limits = [
        "--trainer.limit_train_batches",
        "1",
        "--trainer.limit_val_batches",
        "1",
        "--model.network.bn_momentum",
        "0.03",
    ]
    cli.main([*small_fit(small_data, run, "--trainer.max_epochs", "1"), *limits])
    return run / "checkpoints/last.ckpt"


@pytest.fixture
def files(tmp_path: Path, trained: Path, as_yolov5: Callable[..., Any]) -> dict[str, Path]:
    """A whole file of each kind."""
    multiples = {"depth_multiple": 0.33, "width_multiple": 0.125}
    whole = {kind: tmp_path / f"whole{kind}" for kind in (".ckpt", ".pt", ".pth", ".backbone.pth")}
    whole[".ckpt"].write_bytes(trained.read_bytes())
    torch.save({"model": as_yolov5(small(5), names=NAMES, yaml=multiples)}, whole[".pt"])
    write(whole[".pth"], yolox())
    torch.save(timm.create_model(RESNET).state_dict(), whole[".backbone.pth"])
    return whole


def flip(whole: Path, at: int, bit: int = 1) -> Path:
    """A copy with one bit changed."""
    data = bytearray(whole.read_bytes())
    data[at] ^= bit
    copy = whole.with_name(whole.name.replace("whole", "flipped"))
    copy.write_bytes(data)
    return copy


def in_a_tensor(whole: Path) -> int:
    """A place within the largest record."""
    with zipfile.ZipFile(whole) as archive:
        entry = max(archive.infolist(), key=lambda entry: entry.file_size)
    return entry.header_offset + 1000 + entry.file_size // 2


def refused(line: list[str], path: Path, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        cli.main(line)
    told = capsys.readouterr().err.strip()
    assert leaving.value.code == 2
    assert len(told.splitlines()) == 1
    assert str(path) in told
    assert why in told


READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    ".ckpt": lambda path: read_trained(path).tensors,
    ".pt": lambda path: read_yolov5(path).state,
    ".pth": lambda path: read_yolox(path) or read_yolov5(path).state,
    ".backbone.pth": read_tensors,
}


@pytest.mark.parametrize("kind", READERS)
def test_a_flipped_bit_changes_no_tensor(kind: str, files: dict[str, Path]) -> None:
    """Anywhere: most places are covered by a checksum; what is not (padding, times) changes
    nothing."""
    rng = random.Random(0)
    whole = files[kind]
    expected = READERS[kind](whole)
    size = whole.stat().st_size
    places = [rng.randrange(size) for _ in range(20)] + [
        size - 1 - rng.randrange(size // 20) for _ in range(20)
    ]
    outcomes = []
    for at in places:
        flipped = flip(whole, at, 1 << rng.randrange(8))
        message = ""
        try:
            found = READERS[kind](flipped)
        except InputError as e:
            message = str(e)
        outcomes.append(bool(message))
        if message:
            assert message.startswith(f"{flipped}: ")
            assert "\n" not in message
        else:
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in found)
    assert sum(outcomes[:20]) > 13


DOORS = {
    "fit --model.start.weights x.ckpt": (".ckpt", ["fit", "--model.start.weights", "FILE"]),
    "fit --model.start.weights x.pt": (".pt", ["fit", "--model.start.weights", "FILE"]),
    "fit --model.start.weights x.pth": (
        ".pth",
        ["fit", "--model.network.backbone", "yolox", "--model.start.weights", "FILE"],
    ),
    "fit --model.start.backbone_weights": (
        ".backbone.pth",
        ["fit", *BACKBONE, "--model.start.backbone_weights", "FILE"],
    ),
    "fit --ckpt_path": (".ckpt", ["fit", "--ckpt_path", "FILE"]),
    "validate --ckpt_path x.ckpt": (".ckpt", ["validate", "--ckpt_path", "FILE"]),
    "validate --ckpt_path x.pt": (".pt", ["validate", "--ckpt_path", "FILE"]),
    "validate --ensemble": (
        ".ckpt",
        ["validate", "--ckpt_path", "WHOLE", "--ensemble", "[FILE]"],
    ),
    "predict --ckpt_path x.pt": (
        ".pt",
        ["predict", "--ckpt_path", "FILE", "--source", "IMAGE"],
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_flipped_bit_is_refused_at_every_door(
    door: str,
    files: dict[str, Path],
    small_data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, line = DOORS[door]
    flipped = flip(files[kind], in_a_tensor(files[kind]))
    words = {
        "FILE": str(flipped),
        "WHOLE": str(files[kind]),
        "IMAGE": str(next(small_data.parent.rglob("*.jpg"))),
    }
    for word, meant in words.items():
        line = [each.replace(word, meant) for each in line]
    if line[0] == "fit" and "--ckpt_path" not in line:
        line += ["--data.dataset", str(small_data), *SMALL, "--trainer.max_epochs", "1"]
    elif line[0] == "validate":
        line += ["--data.dataset", str(small_data)]
    refused(line, flipped, "damaged in", capsys)


@pytest.mark.parametrize("kind", [".ckpt", ".pt"])
def test_a_flipped_bit_is_refused_by_export_and_python(
    kind: str, files: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flipped = flip(files[kind], in_a_tensor(files[kind]))
    refused(
        ["export", "--ckpt_path", str(flipped)],
        flipped,
        "damaged in",
        capsys,
    )
    with pytest.raises(InputError, match="damaged in"):
        Detector.load(flipped, "cpu")


def plain_archive() -> bytes:
    file = io.BytesIO()
    torch.save(SAVED, file)
    return file.getvalue()


def compressed() -> bytes:
    """Zeros, a thousand times as many as the file has bytes."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(plain_archive())) as old,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            if "/data/" not in entry.filename:
                new.writestr(entry.filename, old.read(entry))
        with new.open("archive/data/0", "w", force_zip64=True) as record:
            for _ in range(256):
                record.write(bytes(2**20))
    return file.getvalue()


def claimed(name: bytes, size: int) -> bytes:
    """An archive whose directory says that a record has another size."""
    data = bytearray(plain_archive())
    directory = data.index(b"PK\x01\x02")
    while data[directory + 46 : directory + 46 + len(name)] != name:
        directory = data.index(b"PK\x01\x02", directory + 1)
    data[directory + 20 : directory + 28] = size.to_bytes(4, "little") * 2
    return bytes(data)


def shared() -> bytes:
    """An archive whose directory names one record a thousand times."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", bytes(2**20))
        entry = archive.filelist[-1]
        for number in range(1, 1000):
            copy = zipfile.ZipInfo(f"archive/data/{number}")
            copy.header_offset = entry.header_offset
            copy.CRC = entry.CRC
            copy.file_size = entry.file_size
            copy.compress_size = entry.compress_size
            archive.filelist.append(copy)
    return file.getvalue()


CLAIMS: dict[str, Callable[[], bytes]] = {
    "compressed": compressed,
    "a record larger than the file": lambda: claimed(b"archive/data/0", 2**31),
    "one record a thousand times": shared,
}


def read_and_tell(paths: list[Path], told: Any) -> None:
    """In a process of its own: what reading each file ends in, and by how many MB it has grown."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in paths:
        with pytest.raises(InputError) as refusal:
            load_torch_file(path)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        told.send((str(refusal.value), grown // 1024))


def test_a_claimed_size_takes_no_memory(
    tmp_path: Path, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that reads grows by less than 50 MB, where each file claims 256 MB or more."""
    paths = [tmp_path / f"{number}.pt" for number in range(len(CLAIMS))]
    for path, made in zip(paths, CLAIMS.values(), strict=True):
        path.write_bytes(made())
        assert path.stat().st_size < 2_000_000
    ours, theirs = multiprocessing.Pipe(duplex=False)
    reader = multiprocessing.get_context("fork").Process(target=read_and_tell, args=(paths, theirs))
    reader.start()
    theirs.close()
    for path in paths:
        message, grown = ours.recv()
        assert message.startswith(f"{path}: ")
        assert "refused" in message
        assert grown < 50
        line = [*small_fit(small_data, tmp_path / "run"), "--model.start.weights", str(path)]
        refused(line, path, "refused", capsys)
    reader.join()
