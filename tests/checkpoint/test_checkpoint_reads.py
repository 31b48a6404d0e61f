"""How often a command reads its checkpoint file: bytes are counted in every file object that is
opened on one."""

import gc
import io
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_fit import small_fit

import boltbox.callbacks
import cli


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


def loads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, weakref.ref[torch.Tensor]]]:
    """The tensors that torch.load returns from now on, where it reads their values."""
    given: list[dict[str, weakref.ref[torch.Tensor]]] = []
    plain = torch.load

    def counted(file: Any, *args: Any, **kwargs: Any) -> Any:
        content = plain(file, *args, **kwargs)
        if not kwargs.get("mmap"):
            given.append({k: weakref.ref(tensor) for k, tensor in content["state_dict"].items()})
        return content

    monkeypatch.setattr(torch, "load", counted)
    return given


def test_a_resume_reads_its_checkpoint_once_and_keeps_nothing_of_it(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the training starts. Network and average are copied out of the file's tensors; the
    optimizer keeps its own, as Lightning's loading has it."""
    one_batch = ["--trainer.limit_train_batches", "1", "--trainer.max_epochs"]
    cli.main([*small_fit(small_data, Path("run"), *one_batch, "1")])
    last = (here / "run/checkpoints/last.ckpt").resolve()
    size = last.stat().st_size
    reads = BytesRead(monkeypatch)
    loaded = loads(monkeypatch)
    read: dict[Path, int] = {}
    kept: list[str] = []

    def starts(*_: Any) -> None:
        gc.collect()
        read.update(reads.of)
        kept.extend(
            f"{k} {name}"
            for k, tensors in enumerate(loaded)
            for name, tensor in tensors.items()
            if tensor() is not None
        )

    monkeypatch.setattr(boltbox.callbacks.RunState, "on_train_start", starts)
    cli.main(["fit", "--ckpt_path", "last", "--run", "run", "--trainer.max_epochs", "2"])
    assert 1.7 < read[last] / size < 2.3, "the checksums, then all of it"
    assert read[last.with_name("best.ckpt")] / size < 0.5, (
        "only looked at: how much was trained, and how good it is"
    )
    assert ["network.head.anchors" in tensors for tensors in loaded] == [True]
    assert not kept
