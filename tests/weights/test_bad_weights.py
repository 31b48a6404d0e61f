"""Files of weights that would run something, are damaged or are something else: none does harm,
each is refused by name."""

import io
import os
import pickle
import random
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made_networks import small, yolov5_converter  # noqa: F401
from made_payloads import Call
from shared import published_file  # noqa: F401
from torch import nn
from weight_files import read_yolov5

from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.torch_file import StandIn, load_torch_file
from boltbox.detector.weights.yolov5 import ALLOWED


def zipped(data: bytes) -> bytes:
    """A pickle in torch's zip format."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


def payload(kind: str, marker: Path) -> tuple[bytes, str]:
    """A file that creates `marker` when torch loads it without care, and the name that must be in
    the message."""
    shell = f"touch {marker}"
    python = f"open({str(marker)!r}, 'w').close()"
    system = Call(os.system, shell)
    objects: dict[str, tuple[Any, str]] = {
        "os.system": (system, f"'{os.name}.system'"),
        "eval": (Call(eval, python), "'eval'"),
        "exec": (Call(exec, python), "'exec'"),
        "getattr": (Call(Call(getattr, Call(__import__, "os"), "system"), shell), "'getattr'"),
        "Popen": (Call(subprocess.Popen, ["touch", str(marker)]), "'subprocess.Popen'"),
        "in a state dict": (
            {"model": {"a.weight": torch.zeros(2).tolist(), "b.weight": [system]}},
            f"'{os.name}.system'",
        ),
        "in the names": (
            {"state_dict": {}, "hyper_parameters": {"names": ["cat", system]}},
            f"'{os.name}.system'",
        ),
        "protocol 4": (system, "not a file of weights"),  # torch refuses the instruction itself
        "not a zip": (system, f"'{os.name}.system'"),
    }
    content, name = objects[kind]
    if kind == "not a zip":
        file = io.BytesIO()
        torch.save(content, file, _use_new_zipfile_serialization=False)
        return file.getvalue(), name
    return zipped(pickle.dumps(content, 4 if kind == "protocol 4" else 2, fix_imports=False)), name


def ran(marker: Path, seconds: float) -> bool:
    """Whether the marker appears within that time."""
    end = time.monotonic() + seconds
    while not marker.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return marker.exists()


PAYLOADS = [
    "os.system",
    "eval",
    "exec",
    "getattr",
    "Popen",
    "in a state dict",
    "in the names",
    "protocol 4",
    "not a zip",
]


@pytest.mark.parametrize("suffix", [".pt", ".ckpt"])
@pytest.mark.parametrize("kind", PAYLOADS)
def test_nothing_in_a_file_is_executed(tmp_path: Path, kind: str, suffix: str) -> None:
    marker = tmp_path / "marker"
    file = tmp_path / f"file{suffix}"
    data, name = payload(kind, marker)
    file.write_bytes(data)
    torch.load(file, weights_only=False)
    assert ran(marker, 5), "the file does run something where nobody minds"
    marker.unlink()

    with pytest.raises(InputError) as error:
        load_weights(small(), file)
    assert not ran(marker, 0.3 if kind == "Popen" else 0)
    assert name in str(error.value)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "evil.module.Thing",
        "torch.serialization.load",
        "models.common.os.system",
        "numpy.load",
        "posixpath.join",
    ],
)
def test_unknown_names_are_refused(tmp_path: Path, name: str) -> None:
    """Also names beside the allowed ones."""
    module, _, attribute = name.rpartition(".")
    (tmp_path / "file.pt").write_bytes(
        zipped(f"\x80\x02c{module}\n{attribute}\n)R.".encode("latin-1"))
    )
    with pytest.raises(InputError, match=f"file.pt: .*it names '{name}', which is refused"):
        read_yolov5(tmp_path / "file.pt")


def test_allowed_names_are_stand_ins(
    tmp_path: Path, as_yolov5: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file may name is neither imported nor called."""
    torch.save(
        {"model": as_yolov5(small(), nc=3), "opt": Path("/etc/passwd")}, tmp_path / "file.pt"
    )
    monkeypatch.delitem(sys.modules, "models.yolo")
    content = load_torch_file(tmp_path / "file.pt", ALLOWED)
    assert [type(v) for v in content.values()] == [StandIn, StandIn]
    assert content["opt"].args == ("/", "etc", "passwd")
    assert content["model"].state["nc"] == 3
    assert "models.yolo" not in sys.modules


def tiny(zip_format: bool = True) -> bytes:
    file = io.BytesIO()
    content = {
        "model": {"weight": torch.zeros(3), "names": ["a", "b"]},
        "ema": None,
        "epoch": 300,
        "fitness": 0.5,
        "x": [1, (2, 70_000)],
    }
    torch.save(content, file, _use_new_zipfile_serialization=zip_format)
    return file.getvalue()


def hello() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/hello.txt", "hello")
    return file.getvalue()


def script() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.ReLU()), file)
    return file.getvalue()


DAMAGED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "one byte": lambda: b"P",
    "text": lambda: b"hello, world\n",
    "random": lambda: random.Random(0).randbytes(10_000),
    "the start of a zip": lambda: tiny()[:200],
    "all but the end of a zip": lambda: tiny()[:-10],
    "a zip without a pickle": hello,
    "a zip with an empty pickle": lambda: zipped(b""),
    "a zip with half a pickle": lambda: zipped(pickle.dumps({"model": [1.5] * 9}, 2)[:40]),
    "a script": script,
    "half an old file": lambda: tiny(zip_format=False)[:250],
    "a dictionary of something else": tiny,
    "a page of the web": lambda: b"<!DOCTYPE html><html><body>404</body></html>",
}


@pytest.mark.parametrize("suffix", [".pt", ".ckpt"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files(tmp_path: Path, kind: str, suffix: str) -> None:
    file = tmp_path / f"file{suffix}"
    file.write_bytes(DAMAGED[kind]())
    with pytest.raises(InputError) as error:
        load_weights(small(), file)
    said = str(error.value)
    assert said.startswith(f"{file}: ")
    assert "\n" not in said
    assert ". " not in said, "one sentence"
    assert "weights_only" not in said, "no advice to load it without care"


@pytest.mark.parametrize("zip_format", [True, False])
def test_cut_anywhere(tmp_path: Path, zip_format: bool) -> None:
    """A download that broke off after any number of bytes; in the old format a short file may
    happen to be whole."""
    data = tiny(zip_format)
    file = tmp_path / "cut.pt"
    for end in range(0, len(data), 1 if not zip_format else 7):
        file.write_bytes(data[:end])
        with pytest.raises(InputError, match=r"cut.pt: "):
            read_yolov5(file)


def test_flipped_bytes(tmp_path: Path) -> None:
    """Whatever torch stumbles over in a damaged file becomes an InputError."""
    rng = random.Random(0)
    file = tmp_path / "flipped.pt"
    for _ in range(500):
        data = bytearray(tiny(zip_format=False))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(data)
        with pytest.raises(InputError, match=r"flipped.pt: "):
            read_yolov5(file)


def test_a_published_file_cut_in_two(published: Path, tmp_path: Path) -> None:
    data = published.read_bytes()
    (tmp_path / "half.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"half.pt: damaged, or not"):
        read_yolov5(tmp_path / "half.pt")


@pytest.mark.parametrize("name", ["missing.pt", "missing.ckpt", "folder", "folder.ckpt"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.ckpt").mkdir()
    with pytest.raises(InputError, match=f"{name}: no (such weights file$|run folder)"):
        load_weights(small(), tmp_path / name)
