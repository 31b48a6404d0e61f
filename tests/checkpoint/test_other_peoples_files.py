"""Files of weights and checkpoints that would run something, are damaged, or hold something else
than they should: at every door they are refused by name, and nothing in them is executed."""

import contextlib
import copy
import io
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from made_backbones import BACKBONE, RESNET
from made_networks import small, yolov5_converter  # noqa: F401
from made_payloads import Call
from small_fit import SMALL, small_fit
from torch import nn
from weight_files import read_yolov5

import cli
from boltbox.detector.checkpoint.reader import newest_valid, read_checkpoint
from boltbox.detector.checkpoint.runs import new_run
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.timm import read_tensors
from boltbox.detector.weights.torch_file import StandIn, load_torch_file
from boltbox.detector.weights.trained import read_trained
from boltbox.detector.weights.yolov5 import ALLOWED

NAMES = ["disc", "ring", "star", "triangle", "cross"]


def saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def pickled(content: Any, protocol: int = 2) -> bytes:
    """In torch's zip format."""
    data = content
    if not isinstance(data, bytes):
        data = pickle.dumps(content, protocol, fix_imports=False)
    return zipped({"archive/data.pkl": data, "archive/version": b"3\n"})


def payloads(marker: Path) -> dict[str, bytes]:
    """Files that create `marker` when torch loads them without care."""
    shell = f"touch {marker}"
    system = Call(os.system, shell)
    state = {"state_dict": {}, "hyper_parameters": {"names": ["cat", {"deep": (system,)}]}}
    return {
        "os.system": pickled(system),
        "exec": pickled(Call(exec, f"open({str(marker)!r}, 'w').close()")),
        "getattr": pickled(Call(Call(getattr, Call(__import__, "os"), "system"), shell)),
        "Popen": pickled(Call(subprocess.Popen, ["touch", str(marker)])),
        "a class of ours": pickled(Call(new_run, "fit")),
        "in the names": pickled(state),
        "protocol 4": pickled(system, 4),  # torch refuses the instruction itself
        "not a zip": saved(system, _use_new_zipfile_serialization=False),
    }


def ran(marker: Path, seconds: float) -> bool:
    """Whether the marker, or the folder of a class of ours, appears within that time."""
    end = time.monotonic() + seconds
    while not marker.exists() and not Path("runs").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return marker.exists() or Path("runs").exists()


@pytest.mark.parametrize("kind", payloads(Path("m")))
def test_nothing_in_a_file_is_executed(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = here / "marker"
    for suffix in (".pt", ".ckpt"):
        file = here / f"last{suffix}"
        file.write_bytes(payloads(marker)[kind])
        torch.load(file, weights_only=False)
        assert ran(marker, 5), "it runs something where nobody minds"
        marker.unlink(missing_ok=True)
        shutil.rmtree("runs", ignore_errors=True)
        with pytest.raises(InputError, match=f"^{file}: [^\n]+$"):
            load_weights(small(), file)
        assert not ran(marker, 0.3 if kind == "Popen" else 0)
    with pytest.raises(InputError):
        read_checkpoint(file)
    assert newest_valid(here) is None
    assert str(file) in capsys.readouterr().out
    assert not ran(marker, 0)


@pytest.mark.parametrize("name", ["evil.Thing", "torch.load", "models.common.os.system"])
def test_what_a_file_may_name(
    name: str, tmp_path: Path, as_yolov5: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some classes, which are neither imported nor called; not names beside them."""
    file = tmp_path / "file.pt"
    module, _, attribute = name.rpartition(".")
    file.write_bytes(pickled(f"\x80\x02c{module}\n{attribute}\n)R.".encode("latin-1")))
    with pytest.raises(InputError, match=f"file.pt: .*'{name}'"):
        read_yolov5(file)
    torch.save({"model": as_yolov5(small(), nc=3), "opt": Path("/etc/passwd")}, file)
    monkeypatch.delitem(sys.modules, "models.yolo")
    content = load_torch_file(file, ALLOWED)
    assert [type(v) for v in content.values()] == [StandIn, StandIn]
    assert content["opt"].args == ("/", "etc", "passwd")
    assert content["model"].state["nc"] == 3
    assert "models.yolo" not in sys.modules


TINY = {"model": {"weight": torch.zeros(3), "names": ["a", "b"]}, "x": [1, (2, 70_000)]}


def claims() -> bytes:
    """An archive whose directory says that a record is larger than the file."""
    data = bytearray(saved(TINY))
    place = data.rindex(b"PK\x01\x02", 0, data.rindex(b"archive/data/0"))
    data[place + 20 : place + 28] = (2**31).to_bytes(4, "little") * 2
    return bytes(data)


def short_storage() -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved(TINY))) as source:
        entries = {entry.filename: source.read(entry) for entry in source.infolist()}
    return zipped(entries | {name: b"1" for name in entries if "/data/" in name})


def script() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.ReLU()), file)
    return file.getvalue()


EMPTY = pickle.dumps({}, 2)
BROKEN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "one byte": lambda: b"P",
    "random": lambda: random.Random(0).randbytes(10_000),
    "a page of the web": lambda: b"<!DOCTYPE html><html><body>404</body></html>",
    "the start of a zip": lambda: saved(TINY)[:200],
    "all but the end of a zip": lambda: saved(TINY)[:-10],
    "a zip without a pickle": lambda: zipped({"archive/hello.txt": b"hello"}),
    "a zip with half a pickle": lambda: pickled(pickle.dumps({"model": [1.5] * 9}, 2)[:40]),
    "a script": script,
    "a list": lambda: saved([1, 2, 3]),
    "something else": lambda: saved(TINY),
    "a storage that is too short": short_storage,
    "a record larger than the file": claims,
    "a bomb": lambda: zipped({"a/data.pkl": EMPTY, "a/data/0": bytes(2**24)}, zipfile.ZIP_DEFLATED),
    "a path out of the archive": lambda: zipped({"a/data.pkl": EMPTY, "../../outside": b"x"}),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files(tmp_path: Path, kind: str) -> None:
    for suffix in (".pt", ".ckpt"):
        file = tmp_path / f"file{suffix}"
        file.write_bytes(BROKEN[kind]())
        with pytest.raises(InputError, match=f"^{file}: [^\n]+$") as error:
            load_weights(small(), file)
        assert "weights_only" not in str(error.value), "no advice to load it without care"
        if kind in ("a bomb", "a record larger than the file"):
            assert "refused" in str(error.value), "before memory is taken"


@pytest.mark.parametrize("zip_format", [True, False])
def test_cut_or_changed_anywhere(tmp_path: Path, zip_format: bool) -> None:
    """Whatever torch stumbles over becomes an InputError."""
    rng = random.Random(0)
    data = saved(TINY, _use_new_zipfile_serialization=zip_format)
    file = tmp_path / "cut.pt"
    versions = [data[:end] for end in range(0, len(data), 7)]
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        versions.append(bytes(changed))
    for version in versions:
        file.write_bytes(version)
        with pytest.raises(InputError, match=r"cut.pt: "):
            read_yolov5(file)


@pytest.fixture(scope="module")
def run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, not to be written to: `previous.ckpt` is from before its last batch, with
    a window of gradients open. Its network finds nothing: so an export has no ties to compare."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    options = "--data.batch_size 4 --model.optim.nominal_batch_size 8 --warmup.warmup_epochs 0"
    options += " --trainer.limit_train_batches 4 --checkpoints.every_minutes 1e-9"
    options += " --trainer.max_epochs 1 --model.network.bn_momentum 0.03"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BOLTBOX_RUN", raising=False)
        cli.main(small_fit(small_data, folder, *options.split()))
    return folder


@pytest.fixture
def whole(here: Path, run: Path, as_yolov5: Callable[..., Any]) -> dict[str, Path]:
    """A whole file of each kind; the .ckpt in a run folder of its own."""
    shutil.copytree(run, here / "run")
    multiples = {"depth_multiple": 0.33, "width_multiple": 0.125}
    torch.save({"model": as_yolov5(small(5), names=NAMES, yaml=multiples)}, here / "x.pt")
    torch.save(timm.create_model(RESNET).state_dict(), here / "timm.pth")
    files = ("run/checkpoints/best.ckpt", "x.pt", "timm.pth")
    return {file.rpartition("/")[2]: here / file for file in files}


READERS: dict[str, Callable[[Path], Any]] = {
    "best.ckpt": lambda path: read_trained(path).tensors,
    "x.pt": lambda path: read_yolov5(path).state,
    "timm.pth": read_tensors,
}


def test_a_flipped_bit_changes_no_tensor(whole: dict[str, Path]) -> None:
    """Anywhere: most places are covered by a checksum; what is not (padding, times) changes
    nothing."""
    rng = random.Random(0)
    for kind, read in READERS.items():
        expected = read(whole[kind])
        data = whole[kind].read_bytes()
        refused = 0
        for _ in range(15):
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            whole[kind].write_bytes(changed)
            found = None
            with contextlib.suppress(InputError):
                found = read(whole[kind])
            refused += found is None
            same = [torch.equal(found[name], expected[name]) for name in expected if found]
            assert all(same)
        assert refused > 8


FIT = ["fit", "--trainer.max_epochs", "1", *SMALL, "--data.dataset", "DATA", "--run", "new"]
DOORS = {  # the file that it opens, and the line
    "start": ("best.ckpt", [*FIT, "--model.start.weights", "FILE"]),
    "start x.pt": ("x.pt", [*FIT, "--model.start.weights", "FILE"]),
    "backbone": ("timm.pth", [*FIT, *BACKBONE, "--model.start.backbone_weights", "FILE"]),
    "fit": ("best.ckpt", ["fit", "--ckpt_path", "best", "--run", "run"]),
    "validate": ("best.ckpt", ["validate", "--ckpt_path", "FILE", "--data.dataset", "DATA"]),
    "validate x.pt": ("x.pt", ["validate", "--ckpt_path", "FILE", "--data.dataset", "DATA"]),
    "ensemble": (
        "best.ckpt",
        ["predict", "--ckpt_path", "run/checkpoints/last.ckpt", "--ensemble", "[FILE]"],
    ),
    "predict": ("best.ckpt", ["predict", "--ckpt_path", "FILE"]),
    "predict x.pt": ("x.pt", ["predict", "--ckpt_path", "FILE"]),
    "export": ("best.ckpt", ["export", "--ckpt_path", "FILE"]),
}


def refused(door: str, file: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says: one sentence that names the file, which shows that it was opened. It
    leaves the run's files alone and makes no run."""
    line = list(DOORS[door][1])
    if line[0] == "predict":
        line += ["--source", str(next(data.parent.rglob("*.jpg")))]
    for word, meant in (("FILE", file), ("DATA", data)):
        line = [each.replace(word, str(meant)) for each in line]
    before = {path: path.read_bytes() for path in Path("run/checkpoints").iterdir()}
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        cli.main(line)
    told = capsys.readouterr().err.strip()
    assert leaving.value.code == 2
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1
    assert {path: path.read_bytes() for path in Path("run/checkpoints").iterdir()} == before
    assert not Path("new").exists()
    return told


@pytest.mark.parametrize("door", DOORS)
def test_every_door(
    door: str, whole: dict[str, Path], small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit in a tensor, and a file that runs a shell command."""
    file = whole[DOORS[door][0]]
    with zipfile.ZipFile(file) as archive:
        entry = max(archive.infolist(), key=lambda entry: entry.file_size)
    data = bytearray(file.read_bytes())
    data[entry.header_offset + 1000 + entry.file_size // 2] ^= 1
    file.write_bytes(data)
    told = refused(door, file, small_data, capsys)
    assert file.name in told
    assert "damaged in" in told
    marker = Path("marker").absolute()
    file.write_bytes(payloads(marker)["in the names"])
    assert file.name in refused(door, file, small_data, capsys)
    assert not marker.exists()


Craft = Callable[[dict[str, Any]], object]
CRAFTED: dict[str, Craft] = {  # the door that meets it, and what
    "fit: no loops": lambda c: c.pop("loops"),
    "fit: progress": lambda c: c["loops"]["fit_loop"].update(epoch_progress={"total": []}),
    "fit: batches": lambda c: c["loops"]["fit_loop"].update({"epoch_loop.batch_progress": 3}),
    "fit: no optimizer": lambda c: c.update(optimizer_states=[]),
    "fit: callbacks": lambda c: c.update(callbacks={"EMA": 3}),
    "fit: processes": lambda c: c.update(processes=[{"gradients": []}]),
    "fit: data": lambda c: c.update(DetectionData={"class_maps": 3}),
    "fit: tensors": lambda c: c.update(state_dict={"network.a": 1}),
    "start: a tensor larger than the file": lambda c: c["state_dict"].update(
        {"ema.backbone.stem.conv.weight": torch.zeros(1).expand(10**11)}
    ),
    "validate: names": lambda c: c["hyper_parameters"].update(names={"a": 1}),
    "validate: no names": lambda c: c["hyper_parameters"].update(names=[]),
    "predict: odd names": lambda c: c["hyper_parameters"].update(names=["\ud800", *"bcde"]),
    "predict: a tensor less": lambda c: c["state_dict"].pop("ema.head.anchors"),
    "predict: huge": lambda c: c["hyper_parameters"]["network"].update(depth_multiple=1e9),
    "ensemble: levels": lambda c: c["hyper_parameters"]["network"].update(levels="345"),
    "export: a word": lambda c: c["hyper_parameters"]["network"].update(depth_multiple="much"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_checkpoints_that_hold_something_else(
    case: str, run: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = torch.load(run / "checkpoints/previous.ckpt", weights_only=True)
    assert content["processes"][0]["gradients"]
    shutil.copytree(run, here / "run")
    file = here / "run/checkpoints/best.ckpt"
    torch.save(content, file)
    assert read_checkpoint(file), "it was good"
    CRAFTED[case](content)
    torch.save(content, file)
    told = refused(case.partition(":")[0], file, small_data, capsys)
    assert "checkpoint" in told or file.name in told
    if case.startswith("predict"):
        with pytest.raises(InputError, match=r"best\.ckpt"):
            Detector.load(file)


def cyclic(model: Any) -> None:
    model._modules["model"]._modules["0"] = model


def anchors(tensor: torch.Tensor) -> Callable[[Any], object]:
    return lambda model: model.get_submodule("model.24")._buffers.update(anchors=tensor)


HUGE = {"depth_multiple": 1e12, "width_multiple": 1e12}
YOLOV5: dict[str, Callable[[Any], object]] = {
    "names are a number": lambda m: setattr(m, "names", 3),
    "names with unusual keys": lambda m: setattr(m, "names", {"a": "b", 1: "c"}),
    "nc is a word": lambda m: m.__dict__.update(nc="three", names=None),
    "nc is huge": lambda m: m.__dict__.update(nc=10**12, names=None),
    "buffers are a list": lambda m: m.__dict__.update(_buffers=[1]),
    "modules are a word": lambda m: m.__dict__.update(_modules="x"),
    "a module holds itself": cyclic,
    "anchors are a number": anchors(torch.zeros(())),
    "anchors are many": anchors(torch.zeros(3, 1, 2).expand(3, 10**8, 2)),
    "a sparse tensor": anchors(torch.eye(3).to_sparse()),
    "multiples are huge": lambda m: setattr(m, "yaml", HUGE),
    "multiples are no numbers": lambda m: setattr(m, "yaml", {"width_multiple": "x"}),
    "yaml is a list": lambda m: setattr(m, "yaml", [1]),
}


@pytest.mark.parametrize("case", YOLOV5)
def test_files_of_yolov5_that_hold_something_else(
    case: str, tmp_path: Path, as_yolov5: Callable[..., Any]
) -> None:
    file = tmp_path / "crafted.pt"
    multiples = {"depth_multiple": 0.33, "width_multiple": 0.125}
    model = as_yolov5(small(3), yaml=multiples, names=["a", "b", "c"])
    model_of_yolov5 = copy.deepcopy(model)
    YOLOV5[case](model)
    torch.save({"model": model}, file)
    with pytest.raises(InputError, match=f"^{file}: [^\n]+$"):
        read_trained(file)
    torch.save({"model": model_of_yolov5}, file)
    assert read_trained(file).names == ["a", "b", "c"], "it was good"


@pytest.mark.parametrize("name", ["missing.pt", "missing.ckpt", "folder", "folder.ckpt"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    if name.startswith("folder"):
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: no (such weights file$|run folder)"):
        load_weights(small(), tmp_path / name)
