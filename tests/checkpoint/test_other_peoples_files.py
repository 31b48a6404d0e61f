"""Files of weights and checkpoints that would run something, are damaged, or hold something else
than they should: at every door they are refused by name, and nothing in them is executed."""

import copy
import io
import os
import pickle
import random
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from made_backbones import BACKBONE, RESNET
from made_networks import MULTIPLES, small, yolov5_converter  # noqa: F401
from made_payloads import Call
from made_runs import SMALL, load
from torch import nn
from weight_files import read_yolov5, saved

from boltbox.detector.checkpoint.reader import newest_valid, read_checkpoint
from boltbox.detector.checkpoint.runs import new_run
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.torch_file import StandIn, load_torch_file
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.trained import read_trained
from boltbox.detector.weights.yolov5 import ALLOWED

NAMES = ["disc", "ring", "star", "triangle", "cross"]


def zipped(entries, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def pickled(content, protocol=2):
    """In torch's zip format."""
    data = content
    if not isinstance(data, bytes):
        data = pickle.dumps(content, protocol, fix_imports=False)
    return zipped({"archive/data.pkl": data, "archive/version": b"3\n"})


def payloads(marker):
    """Files that create `marker`, or a run, when torch loads them without care."""
    system = Call(os.system, f"touch {marker}")
    state = {"state_dict": {}, "hyper_parameters": {"names": ["cat", {"deep": (system,)}]}}
    return {
        "os.system": pickled(system),
        "a class of ours": pickled(Call(new_run, "fit")),
        "in the names": pickled(state),
        "protocol 4": pickled(system, 4),  # torch refuses the instruction itself
        "not a zip": saved(system, _use_new_zipfile_serialization=False),
    }


@pytest.mark.parametrize("kind", payloads(Path("m")))
def test_nothing_in_a_file_is_executed(kind, here, capsys):
    for suffix in (".pt", ".ckpt"):
        file = here / f"last{suffix}"
        before = os.listdir() + [file.name]
        file.write_bytes(payloads(here / "marker")[kind])
        torch.load(file, weights_only=False)
        (made,) = set(os.listdir()).difference(before)  # where nobody minds
        shutil.move(made, here.with_suffix(suffix))
        with pytest.raises(InputError, match=f"^{file}: [^\n]+$"):
            load_weights(small(), file)
        assert sorted(os.listdir()) == sorted(before)
    with pytest.raises(InputError):
        read_checkpoint(file)
    assert newest_valid(here) is None
    assert str(file) in capsys.readouterr().out
    assert sorted(os.listdir()) == sorted(before)


@pytest.mark.parametrize("name", ["evil.Thing", "torch.load", "models.common.os.system"])
def test_what_a_file_may_name(name, tmp_path, as_yolov5, monkeypatch):
    """Some classes, which are neither imported nor called; not names beside them."""
    file = tmp_path / "file.pt"
    module, _, attribute = name.rpartition(".")
    file.write_bytes(pickled(f"\x80\x02c{module}\n{attribute}\n)R.".encode("latin-1")))
    with pytest.raises(InputError, match=f"file.pt: .*'{name}'"):
        read_yolov5(file)
    torch.save({"model": as_yolov5(small(), nc=3), "opt": Path("/etc/passwd")}, file)
    monkeypatch.delitem(sys.modules, "models.yolo")
    content = load_torch_file(file, ALLOWED)
    assert list(map(type, content.values())) == [StandIn, StandIn]
    assert Path(*content["opt"].args) == Path("/etc/passwd")
    assert content["model"].state["nc"] == 3
    assert "models.yolo" not in sys.modules


TINY = {"model": {"weight": torch.zeros(3), "names": ["a", "b"]}, "x": [1, (2, 70_000)]}


def claims():
    """An archive whose directory says that a record is larger than the file."""
    data = bytearray(saved(TINY))
    place = data.rindex(b"PK\x01\x02", 0, data.rindex(b"archive/data/0"))
    data[place + 20 : place + 28] = (2**31).to_bytes(4, "little") * 2
    return bytes(data)


def short_storage():
    with zipfile.ZipFile(io.BytesIO(saved(TINY))) as source:
        entries = {entry.filename: source.read(entry) for entry in source.infolist()}
    return zipped(entries | {name: b"1" for name in entries if "/data/" in name})


def script():
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.ReLU()), file)
    return file.getvalue()


EMPTY = pickle.dumps({}, 2)
BROKEN = {
    "empty": lambda: b"",
    "a page of the web": lambda: b"<!DOCTYPE html><html><body>404</body></html>",
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
def test_broken_files(tmp_path, kind):
    for suffix in (".pt", ".ckpt"):
        file = tmp_path / f"file{suffix}"
        file.write_bytes(BROKEN[kind]())
        with pytest.raises(InputError, match=f"^{file}: [^\n]+$") as error:
            load_weights(small(), file)
        assert "weights_only" not in str(error.value), "no advice to load it without care"
        if kind in ("a bomb", "a record larger than the file"):
            assert "refused" in str(error.value), "before memory is taken"


@pytest.mark.parametrize("zip_format", [True, False])
def test_cut_or_changed_anywhere(tmp_path, zip_format):
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


@pytest.fixture
def whole(here, trained, as_yolov5):
    """A whole file of each kind; the .ckpt in a run folder of its own."""
    shutil.copytree(trained, here / "run")
    torch.save({"model": as_yolov5(small(5), names=NAMES, yaml=MULTIPLES)}, here / "x.pt")
    torch.save(timm.create_model(RESNET).state_dict(), here / "timm.pth")
    files = ("run/checkpoints/best.ckpt", "x.pt", "timm.pth")
    return {Path(file).name: here / file for file in files}


NEW = f"fit --trainer.max_epochs 1 {SMALL} --data.dataset DATA --run new"
VALIDATE = "validate --data.dataset DATA --data.workers 0 --trainer.enable_progress_bar false"
DOORS = {  # the file that it opens, and the line
    "start": ("best.ckpt", f"{NEW} --model.start.weights FILE"),
    "start x.pt": ("x.pt", f"{NEW} --model.start.weights FILE"),
    "backbone": ("timm.pth", f"{NEW} {' '.join(BACKBONE)} --model.start.backbone_weights FILE"),
    "fit": ("best.ckpt", "fit --ckpt_path best --run run"),
    "validate": ("best.ckpt", f"{VALIDATE} --ckpt_path FILE"),
    "validate x.pt": ("x.pt", f"{VALIDATE} --ckpt_path FILE"),
    "ensemble": (
        "best.ckpt",
        "predict --ckpt_path LAST --ensemble [FILE] --source DATA --workers 0",
    ),
    "ensemble in validate": (
        "best.ckpt",
        f"{VALIDATE} --ckpt_path LAST --ensemble [FILE]",
    ),
    "predict": ("best.ckpt", "predict --ckpt_path FILE --source DATA --workers 0"),
    "predict x.pt": ("x.pt", "predict --ckpt_path FILE --source DATA --workers 0"),
    "export": ("best.ckpt", "export --ckpt_path FILE --format pt2"),
}


@pytest.fixture
def opened(small_data, refused):
    """What a command says of a file that it refuses. It leaves the run's files alone and makes no
    run."""

    def open_door(door, file):
        line = DOORS[door][1].replace("LAST", "run/checkpoints/last.ckpt")
        checkpoints = sorted(Path("run/checkpoints").iterdir())
        before = [path.read_bytes() for path in checkpoints]
        told = refused(line.replace("FILE", str(file)).replace("DATA", str(small_data.parent)))
        assert sorted(Path("run/checkpoints").iterdir()) == checkpoints
        assert [path.read_bytes() for path in checkpoints] == before
        assert not Path("new").exists()
        return told

    return open_door


@pytest.mark.parametrize("door", DOORS)
def test_every_door(door, whole, opened):
    """A flipped bit in a tensor, and a file that runs a shell command."""
    file = whole[DOORS[door][0]]
    with zipfile.ZipFile(file) as archive:
        entry = max(archive.infolist(), key=lambda entry: entry.file_size)
    data = bytearray(file.read_bytes())
    data[entry.header_offset + 1000 + entry.file_size // 2] ^= 1
    file.write_bytes(data)
    told = opened(door, file)
    assert file.name in told
    assert "damaged in" in told
    marker = Path("marker").absolute()
    file.write_bytes(payloads(marker)["in the names"])
    assert file.name in opened(door, file)
    assert not marker.exists()


CRAFTED = {  # the door that meets it, and what
    "fit: batches": lambda c: c["loops"]["fit_loop"].update({"epoch_loop.batch_progress": 3}),
    "validate: no names": lambda c: c["hyper_parameters"].update(names=[]),
    "predict: a tensor less": lambda c: c["state_dict"].pop("ema.head.anchors"),
    "ensemble: levels": lambda c: c["hyper_parameters"]["network"].update(levels="345"),
    "fit: no loops": lambda c: c.pop("loops"),
    "fit: progress": lambda c: c["loops"]["fit_loop"].update(epoch_progress={"total": []}),
    "fit: no optimizer": lambda c: c.update(optimizer_states=[]),
    "fit: callbacks": lambda c: c.update(callbacks={"EMA": 3}),
    "fit: processes": lambda c: c.update(processes=[{"gradients": []}]),
    "fit: data": lambda c: c.update(DetectionData={"class_maps": 3}),
    "fit: tensors": lambda c: c.update(state_dict={"network.a": 1}),
    "start: a tensor larger than the file": lambda c: c["state_dict"].update(
        {"ema.backbone.stem.conv.weight": torch.zeros(1).expand(10**11)}
    ),
    "validate: names": lambda c: c["hyper_parameters"].update(names={"a": 1}),
    "predict: odd names": lambda c: c["hyper_parameters"].update(names=list("\ud800bcde")),
    "predict: huge": lambda c: c["hyper_parameters"]["network"].update(depth_multiple=1e9),
    "export: a word": lambda c: c["hyper_parameters"]["network"].update(depth_multiple="much"),
}


def scaled(factor):
    def scale(content):
        for name, tensor in content["state_dict"].items():
            if name.startswith("ema.backbone") and tensor.ndim == 4:
                tensor *= factor

    return scale


NUMBERS = {  # what the sentence names
    "backbone.stem.conv.weight": scaled(float("nan")),
    "output": scaled(1e30),
    "-64": lambda c: c.update(image_size=-64),
}


def test_checkpoints_that_hold_something_else(trained, here, opened):
    """Also numbers that are not finite, or make an output that is not, and an impossible size."""
    shutil.copytree(trained, here / "run")
    file = here / "run/checkpoints/best.ckpt"
    content = load(file)
    torch.save(content, file)
    assert read_checkpoint(file), "it was good"
    cases = [(case.partition(":")[0], "", change) for case, change in CRAFTED.items()]
    for word, change in NUMBERS.items():
        cases += [(door, word, change) for door in ("predict", "validate", "export")]
    for door in ("ensemble", "ensemble in validate"):
        cases.append((door, *next(iter(NUMBERS.items()))))
    for door, word, change in cases:
        crafted = copy.deepcopy(content)
        change(crafted)
        torch.save(crafted, file)
        told = opened(door, file)
        if word != "output":
            assert "checkpoint" in told or file.name in told, told
        assert word in told
        if door == "predict" and not word:
            with pytest.raises(InputError, match=r"best\.ckpt"):
                Detector.load(file)


def cyclic(model):
    model._modules["model"]._modules["0"] = model


def anchors(tensor):
    return lambda model: model.get_submodule("model.24")._buffers.update(anchors=tensor)


HUGE = {"depth_multiple": 1e12, "width_multiple": 1e12}
YOLOV5 = {
    "names with unusual keys": lambda m: setattr(m, "names", {"a": "b", 1: "c"}),
    "nc is a word": lambda m: m.__dict__.update(nc="three", names=None),
    "modules are a word": lambda m: m.__dict__.update(_modules="x"),
    "anchors are a number": anchors(torch.zeros(())),
    "multiples are no numbers": lambda m: setattr(m, "yaml", {"width_multiple": "x"}),
    "names are a number": lambda m: setattr(m, "names", 3),
    "nc is huge": lambda m: m.__dict__.update(nc=10**12, names=None),
    "buffers are a list": lambda m: m.__dict__.update(_buffers=[1]),
    "a module holds itself": cyclic,
    "anchors are many": anchors(torch.zeros(3, 1, 2).expand(3, 10**8, 2)),
    "a sparse tensor": anchors(torch.eye(3).to_sparse()),
    "multiples are huge": lambda m: setattr(m, "yaml", HUGE),
    "yaml is a list": lambda m: setattr(m, "yaml", [1]),
}


def test_files_of_yolov5_that_hold_something_else(tmp_path, as_yolov5):
    file = tmp_path / "crafted.pt"
    model = as_yolov5(small(3), yaml=MULTIPLES, names=["a", "b", "c"])
    for case, change in YOLOV5.items():
        crafted = copy.deepcopy(model)
        change(crafted)
        torch.save({"model": crafted}, file)
        with pytest.raises(InputError, match=f"^{file}: [^\n]+$"):
            pytest.fail(f"{case}: {read_trained(file)}")
    torch.save({"model": model}, file)
    assert read_trained(file).names == ["a", "b", "c"], "it was good"


def test_no_such_file(here):
    for name in ("folder", "folder.ckpt"):
        (here / name).mkdir()
    for name in ("missing.pt", "missing.ckpt", "folder", "folder.ckpt"):
        with pytest.raises(InputError, match=f"{name}: no (such weights file$|run folder)"):
            load_weights(small(), here / name)
