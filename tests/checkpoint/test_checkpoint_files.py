"""Checkpoint files: what they hold, when the thread that writes them is done, and which one of a
folder is taken when some are damaged."""

import gc
import os
import shutil
import threading
import weakref

import numpy as np
import pytest
import torch
from made_runs import column, load, train, type_line
from weight_files import saved

from benchmarks.resume_fuzz import unlike
from boltbox.callbacks import RunState
from boltbox.detector.checkpoint.reader import find_trained, newest_valid, read_checkpoint
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO
from boltbox.detector.system.errors import InputError

ONE_BATCH = "--trainer.limit_train_batches 1 --trainer.max_epochs"
SAVE = "boltbox.detector.checkpoint.writer.torch.save"


@pytest.fixture(scope="module")
def trained(small_data, tmp_path_factory):
    """A run of two epochs, not to be written to."""
    run = tmp_path_factory.mktemp("trained") / "run"
    options = "--checkpoints.save_period 1 --model.optim.nominal_batch_size 8"
    train(small_data, run, f"{options} {ONE_BATCH} 2")
    return run


def write(folder, **steps):
    """The smallest checkpoints that pass for ours, of these names, after so many steps."""
    plain = dict.fromkeys(("hyper_parameters", "optimizer_states", "loops", "callbacks"))
    for name, number in steps.items():
        content = plain | {"global_step": number, "state_dict": {"a": torch.arange(10_000.0)}}
        (folder / f"{name}.ckpt").write_bytes(saved(content))
    return folder


def test_a_checkpoint_is_complete_and_plain(trained):
    """weights_only: tensors and plain types; float32 throughout. Each is a file of its own."""
    names = ("last", "previous", "best", "epoch0", "epoch1")
    files = [trained / f"checkpoints/{name}.ckpt" for name in names]
    content = load(files[0])
    tensors = content["state_dict"]
    run = content["run"]
    assert {name.partition(".")[0] for name in tensors} == {"network", "ema", "loss"}
    assert set(column(tensors.values(), "dtype")) == {torch.float32, torch.int64}
    assert content["optimizer_states"][0]["state"][0]["exp_avg"].dtype == torch.float32
    assert {"EMA", "EpochTable", "Warmup"} <= content["callbacks"].keys()
    assert {"gradients", "epoch_losses", "random"} == set(content["processes"][0])
    assert content["hyper_parameters"]["names"] == ["disc", "ring", "star", "triangle", "cross"]
    assert torch.__version__.startswith(run["versions"]["torch"])
    assert "width_multiple: 0.125" in run["config"]
    best = load(files[2])["epoch"]
    assert len({file.stat().st_ino for file in files}) == len(files)
    assert [load(file)["epoch"] for file in files] == [1, 0, best, 0, 1]


def test_a_kill_in_the_first_save_leaves_no_gap(trained, here):
    """After best.ckpt, which is the first of its names: the resume writes the others."""
    shutil.copytree(trained, here / "run")
    folder = here / "run/checkpoints"
    first = (folder / "epoch0.ckpt").read_bytes()
    for file in folder.iterdir():
        file.unlink()
    (folder / "best.ckpt").write_bytes(first)
    type_line("fit --run run --ckpt_path auto")
    assert (folder / "epoch0.ckpt").read_bytes() == first
    assert (folder / "previous.ckpt").read_bytes() == first
    assert load(folder / "epoch1.ckpt")["epoch"] == 1


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: data[: -len(data) // 4] + bytes(len(data) // 4),
    "a bit": lambda data: data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:],
    "other weights": lambda data: saved({"state_dict": {"a": torch.zeros(3)}}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_not_the_newest(kind, tmp_path, capsys):
    """One sentence says why, also where it was given by name."""
    last = write(tmp_path, last=2, previous=1) / "last.ckpt"
    last.write_bytes(DAMAGE[kind](last.read_bytes()))
    assert newest_valid(tmp_path)[0] == tmp_path / "previous.ckpt"
    assert str(last) in capsys.readouterr().out
    with pytest.raises(InputError, match=f"^{last}: [^\n]+$"):
        find_trained(str(last), None)


def test_the_run_goes_on_from_the_file_before_a_damaged_one(trained, here, refused, capfd):
    """To the same weights; where all are damaged, it is an error."""
    shutil.copytree(trained, here / "run")
    folder = here / "run/checkpoints"
    (folder / "best.ckpt").unlink()
    for name in ("last", "epoch1"):
        (folder / f"{name}.ckpt").write_bytes(DAMAGE["cut"]((folder / "last.ckpt").read_bytes()))
    os.utime(folder / "previous.ckpt", (1, 1))
    theirs = load(trained / "checkpoints/last.ckpt")["state_dict"]
    for run, line in (
        ("other", "--run other --ckpt_path run"),
        ("run", "--run run --ckpt_path last"),
    ):
        type_line(f"fit {line}")
        assert "resume:    run/checkpoints/previous.ckpt\n" in capfd.readouterr().out
        ours = load(here / run / "checkpoints/last.ckpt")["state_dict"]
        assert not unlike(ours, theirs, "")
    for file in folder.iterdir():
        file.write_bytes(b"")
    for word in ("last", "auto"):
        assert "run/checkpoints" in refused(f"fit --run run --ckpt_path {word}")


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ({"last": 1, "previous": 1, "best": 2, "epoch0": 1}, "last"),
        ({"previous": 1, "best": 2}, "previous"),
        ({"best": 1, "epoch1": 2, "epoch0": 1}, "epoch1"),
    ],
)
def test_last_comes_first(steps, first, tmp_path):
    """Then previous, then the most trained, whatever the times of the files are."""
    write(tmp_path, **steps)
    for name in steps:
        os.utime(tmp_path / f"{name}.ckpt", (2e9, 2e9 + (name != first)))
    assert newest_valid(tmp_path)[0].stem == first


def test_a_save_returns_before_the_file_is_there_only_if_asked(tmp_path, monkeypatch):
    """What cannot be written at all is a mistake in the program and ends the training."""
    io = AtomicCheckpointIO()
    save = torch.save
    go = threading.Event()

    def save_when_told(content, file):
        assert go.wait(240)
        save(content, file)

    weight = torch.zeros(3)
    monkeypatch.setattr(SAVE, save_when_told)
    io.copies = ["b.ckpt"]
    io.save_checkpoint({"weight": weight}, tmp_path / "a.ckpt")
    assert list(tmp_path.glob("*.ckpt")) == []
    weight += 1
    go.set()
    io.save_checkpoint({"weight": weight}, tmp_path / "c.ckpt")  # at once, after the one before
    values = [load(tmp_path / f"{name}.ckpt")["weight"].sum() for name in "abc"]
    assert values == [0, 0, 3]
    monkeypatch.setattr(SAVE, lambda content, file: 1 / 0)
    io.copies = []
    io.save_checkpoint({"weight": weight}, tmp_path / "d.ckpt")
    with pytest.raises(ZeroDivisionError):
        io.teardown()


class Own:
    """What weights_only does not read."""


def test_what_could_not_be_read_again_is_not_saved(tmp_path, monkeypatch, capsys):
    """Found before the older checkpoint goes; on a disk that loses bits too."""
    last = write(tmp_path, last=1) / "last.ckpt"
    before = last.read_bytes()
    whole = torch.save

    def lossy(content, file):
        whole(content, file)
        file.seek(file.tell() // 2)
        file.write(b"\x55" * 64)
        file.seek(0, 2)

    io = AtomicCheckpointIO()
    io.copies = []
    io.save_checkpoint({"a": Own()}, last)
    with pytest.raises(InputError, match=r"would hold a test_checkpoint_files\.Own"):
        io.wait()
    AtomicCheckpointIO().save_checkpoint([1], last)
    content = {"weight": torch.arange(10_000.0), "best": np.float64(0.5)}
    with monkeypatch.context() as patch:
        patch.setattr(SAVE, lossy)
        AtomicCheckpointIO().save_checkpoint(content, last)
    output = capsys.readouterr().out
    assert output.count(f"{last} could not be saved") == 2
    assert last.read_bytes() == before
    assert os.listdir(tmp_path) == ["last.ckpt"]
    AtomicCheckpointIO().save_checkpoint(content, last)
    assert (tmp_path / "previous.ckpt").read_bytes() == before
    assert load(last)["best"] == 0.5
    with pytest.raises(InputError, match="not a training checkpoint"):
        read_checkpoint(last)


@pytest.mark.parametrize("name", ["last.ckpt", "previous.ckpt"])
def test_a_move_that_fails_leaves_the_older_file(name, tmp_path, monkeypatch):
    last = write(tmp_path, last=1) / "last.ckpt"
    before = last.read_bytes()
    replace = os.replace
    errors = [OSError(28, "no space")]

    def fail_once(source, target):
        if target.name == name and errors:
            raise errors.pop()
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_once)
    AtomicCheckpointIO().save_checkpoint({"a": torch.zeros(3)}, last)
    assert not errors
    assert list(tmp_path.iterdir()) == [last]
    assert last.read_bytes() == before


def test_a_resume_reads_its_checkpoint_once_and_keeps_nothing_of_it(trained, here, monkeypatch):
    """When the training starts. Network and average are copied out of the file's tensors; the
    optimizer keeps its own, as Lightning's loading has it."""
    shutil.copytree(trained, here / "run")
    tensors = {}
    left = []
    read = torch.load

    def counted(file, **options):
        content = read(file, **options)
        if not options.get("mmap"):
            for name, tensor in content["state_dict"].items():
                assert name not in tensors, "it is read again"
                tensors[name] = weakref.ref(tensor)
        return content

    def starts(*_):
        gc.collect()
        left.append(sum(tensor() is not None for tensor in tensors.values()))

    monkeypatch.setattr(torch, "load", counted)
    monkeypatch.setattr(RunState, "on_train_start", starts)
    type_line("fit --ckpt_path last --run run --trainer.max_epochs 3")
    assert "network.head.anchors" in tensors
    assert left == [0]
