"""Checkpoints that a thread writes while training goes on."""

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from small_fit import small_fit

import cli
from benchmarks.resume_fuzz import unlike
from boltbox.detector.checkpoint.reader import read_checkpoint
from boltbox.detector.checkpoint.writer import AtomicCheckpointIO, snapshot

OPTIONS = """--trainer.limit_train_batches 1 --model.optim.nominal_batch_size 8 --checkpoints.save_period 1
--seed_everything 5 --trainer.callbacks test_background_checkpoints.Trained --trainer.max_epochs"""
SAVE = "boltbox.detector.checkpoint.writer.torch.save"


class Trained(L.Callback):
    """Tells the thread that a batch was trained since the epoch ended."""

    event = threading.Event()

    def on_validation_end(self, *_: Any) -> None:
        self.event.clear()

    def on_train_batch_end(self, *_: Any) -> None:
        self.event.set()


def fit(data: Path, run: Path, epochs: int = 2) -> Path:
    cli.main(small_fit(data, run, *OPTIONS.split(), str(epochs)))
    return run / "checkpoints"


def test_files_hold_the_epoch_that_they_were_saved_at(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the weights had moved on before the first byte was written."""
    expected = fit(small_data, tmp_path / "plain")
    save = torch.save
    late = []

    def save_late(content: Any, file: Any) -> None:
        # no batch comes after the last epoch
        late.append(content["epoch"] == 1 or Trained.event.wait(60))
        save(content, file)

    monkeypatch.setattr(SAVE, save_late)
    found = fit(small_data, tmp_path / "late")
    assert late == [True] * 2  # written once an epoch, under two names or three
    assert sorted(f.name for f in found.iterdir()) == sorted(f.name for f in expected.iterdir())
    for name in ("epoch0.ckpt", "previous.ckpt", "last.ckpt", "best.ckpt"):
        assert read_checkpoint(found / name)
        ours, theirs = (
            torch.load(folder / name, weights_only=True) for folder in (found, expected)
        )
        for content in (ours, theirs):
            for row in content["callbacks"]["EpochTable"]["rows"]:
                del row["seconds"]
        keys = ("state_dict", "optimizer_states", "processes", "global_step", "epoch", "callbacks")
        for key in keys:
            assert not unlike(ours[key], theirs[key], key), name


def test_what_cannot_be_written_at_all_ends_the_training(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in the program, not a full disk: it would happen at every checkpoint."""

    def fail(content: Any, file: Any) -> None:
        raise TypeError("cannot pickle this")

    monkeypatch.setattr(SAVE, fail)
    with pytest.raises(TypeError, match="cannot pickle this"):
        fit(small_data, tmp_path / "run", 1)
    assert not [f.name for f in (tmp_path / "run/checkpoints").iterdir() if "ckpt" in f.name]


def test_a_save_returns_before_the_file_is_there_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = AtomicCheckpointIO()
    save = torch.save
    go = threading.Event()

    def save_when_told(content: Any, file: Any) -> None:
        assert go.wait(60)
        save(content, file)

    weight = torch.zeros(3)
    file = tmp_path / "a.ckpt"
    monkeypatch.setattr(SAVE, save_when_told)
    io.copies = ["b.ckpt"]
    io.save_checkpoint({"weight": weight}, file)
    assert list(tmp_path.glob("*.ckpt")) == []
    weight += 1
    go.set()
    io.save_checkpoint({"weight": weight}, tmp_path / "c.ckpt")  # at once, and after the one before
    for name, value in (("a", 0.0), ("b", 0.0), ("c", 1.0)):
        assert torch.equal(torch.load(tmp_path / f"{name}.ckpt")["weight"], torch.full((3,), value))
    io.teardown()


def test_copies_are_compared_with_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that loses bits of the second file: the first is whole, the older second one stays."""
    io = AtomicCheckpointIO()
    io.save_checkpoint({"weight": torch.zeros(3)}, tmp_path / "last.ckpt")

    def lossy(source: Any, file: Any) -> None:
        file.write(b"\x55" + source.read()[1:])

    monkeypatch.setattr("boltbox.detector.checkpoint.writer.shutil.copyfileobj", lossy)
    io.copies = ["last.ckpt"]
    io.save_checkpoint({"weight": torch.ones(3)}, tmp_path / "best.ckpt")
    io.teardown()
    assert f"{tmp_path / 'last.ckpt'} could not be saved (" in capsys.readouterr().out
    assert torch.load(tmp_path / "best.ckpt")["weight"].sum() == 3
    assert torch.load(tmp_path / "last.ckpt")["weight"].sum() == 0
    assert sorted(f.name for f in tmp_path.iterdir()) == ["best.ckpt", "last.ckpt"]


def test_a_snapshot_is_the_same_but_for_the_memory() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).to(
        memory_format=torch.channels_last
    )
    state = network.state_dict()
    content = {
        "state_dict": state,
        "nested": [state["0.weight"], (1, "two", None)],
        "shape": state["0.weight"].shape,
    }
    copied = snapshot(content)
    assert not unlike(copied, content, "")
    assert isinstance(copied["state_dict"], OrderedDict)
    assert copied["nested"][0].stride() == state["0.weight"].stride()
    assert not {t.data_ptr() for t in state.values()} & {
        t.data_ptr() for t in copied["state_dict"].values()
    }
