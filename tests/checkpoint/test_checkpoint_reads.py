"""How often a command reads its checkpoint file: bytes are counted in every file object that is
opened on one."""

import gc
import io
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import boltbox.callbacks
import cli

QUICK = ["--data.image_size", "64", "--data.batch_size", "8", "--data.workers", "0", "--model.network.width_multiple", "0.125",
         "--trainer.enable_progress_bar", "false", "--trainer.precision", "32-true", "--trainer.limit_train_batches", "1",
         "--report.enabled", "false", "--pictures.enabled", "false", "--autoanchor.enabled", "false"]  # fmt: skip


@pytest.fixture
def run(small_data: Path, here: Path) -> Path:
    """A run of one epoch."""
    cli.main(
        [
            "fit",
            "--data.dataset",
            str(small_data),
            *QUICK,
            "--trainer.max_epochs",
            "1",
            "--run",
            "run",
        ]
    )
    return here / "run"


class BytesRead:
    """Bytes read from files `*.ckpt`, by path. Whoever opens one in Python, Lightning and torch
    included, gets a reader that counts; what a file object hands out is counted anew at every
    reading, from the page cache or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[Path, int] = {}
        plain = open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if mode == "rb" and str(file).endswith(".ckpt"):
                return self.reader(Path(file).resolve())
            return plain(file, mode, *args, **kwargs)

        monkeypatch.setattr("builtins.open", opened)
        monkeypatch.setattr(io, "open", opened)

    def reader(self, path: Path) -> io.BufferedReader:
        counts = self.of

        class Reader(io.BufferedReader):
            def read(self, size: int | None = -1, /) -> bytes:
                data = super().read(size)
                counts[path] = counts.get(path, 0) + len(data)
                return data

            def readinto(self, buffer: Any, /) -> int:
                count = super().readinto(buffer)
                counts[path] = counts.get(path, 0) + count
                return count

        return Reader(io.FileIO(path))


def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch.load is given from now on, where it reads the tensors' values."""
    given: list[Any] = []
    plain = torch.load

    def counted(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("mmap"):
            given.append(file)
        return plain(file, *args, **kwargs)

    monkeypatch.setattr(torch, "load", counted)
    return given


def test_a_resume_reads_its_checkpoint_four_times(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = run / "checkpoints/last.ckpt"
    size, read, loaded = last.stat().st_size, BytesRead(monkeypatch), loads(monkeypatch)
    cli.main(["fit", "--ckpt_path", "last", "--run", str(run)])

    assert 3.5 < read.of[last] / size < 4.4, "its options, then all of it; with the checksums"
    assert len(loaded) == 2
    assert read.of[last.with_name("best.ckpt")] / size < 0.5, (
        "only looked at: how much was trained, and how good it is"
    )


def test_what_was_read_is_let_go_of_before_the_training_starts(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network and average are copied out of the file's tensors; the optimizer keeps its own, as
    Lightning's loading has it."""
    read: dict[str, Any] = {}
    kept: list[str] = []
    plain = torch.load

    def load(*args: Any, **kwargs: Any) -> Any:
        content = plain(*args, **kwargs)
        read.update({name: weakref.ref(tensor) for name, tensor in content["state_dict"].items()})
        return content

    def starts(*_: Any) -> None:
        gc.collect()
        kept.extend(name for name, tensor in read.items() if tensor() is not None)
        kept.append("looked")

    monkeypatch.setattr(torch, "load", load)
    monkeypatch.setattr(boltbox.callbacks.RunState, "on_train_start", starts)
    cli.main(["fit", "--ckpt_path", "last", "--run", str(run), "--trainer.max_epochs", "2"])
    assert "network.anchors" in read
    assert kept == ["looked"]
