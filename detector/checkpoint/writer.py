"""Checkpoints that are written beside their place, verified, and moved there; by a thread, if the
caller does not wait."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from boltbox.detector.system.atomic_file import remove, write_beside
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.zip_archive import check_archive
from boltbox.detector.weights.torch_file import load_torch_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target, verifies what it wrote, and only then moves; `last.ckpt` leaves the
    one before it as `previous.ckpt`. Lightning's own way passes through $TMPDIR and may copy.

    A disk that is full or cannot be written to costs a warning; training continues, with the older
    checkpoints untouched, and boltbox.callbacks.Checkpoints ends a run with an error if files are
    missing in the end.

    Not Lightning's AsyncCheckpointIO: that one cannot be waited for but by its end, and lets any
    number of copies queue up.

    Attributes:
        failed: by path, why the newest content of a file is not on the disk. Complete once `wait`
            has returned.
    """

    def __init__(self) -> None:
        self._background = False
        self._copies: tuple[str, ...] = ()
        self._thread: ThreadPoolExecutor | None = None
        self._saving: Future[dict[Path, str]] | None = None
        self._preloaded: tuple[tuple[int, ...], dict[str, Any]] | None = None
        self.failed: dict[Path, str] = {}

    @contextlib.contextmanager
    def background(self, *copies: str) -> Iterator[None]:
        """A save within returns as soon as the content is copied in memory; a thread writes. One is
        under way at a time.

        Args:
            copies: names of files in the same folder that get what was written, after it and in
                this order.
        """
        self._background, self._copies = True, copies
        try:
            yield
        finally:
            self._background, self._copies = False, ()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        self.wait()
        targets = [Path(path), *(Path(path).with_name(name) for name in self._copies)]
        if self._background:
            self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
            self._saving = self._thread.submit(_save, snapshot(checkpoint), targets)
        else:
            self._report(_save(checkpoint, targets))

    def wait(self) -> None:
        """Until the last save has ended, well or not; it prints what could not be saved."""
        saving, self._saving = self._saving, None
        if saving:
            self._report(saving.result())

    def _report(self, saved: dict[Path, str]) -> None:
        """Remember and print what went wrong.

        Args:
            saved: by path the problem, or an empty string.
        """
        for target, problem in saved.items():
            self.failed.pop(target, None)
            if problem:
                self.failed[target] = problem
                rank_zero_print(
                    f"warning: {target} could not be saved ({problem}); training continues, the"
                    " older checkpoints are intact"
                )

    def preload(self, path: Path, content: dict[str, Any]) -> None:
        """Have the next load, if it is of this file and the file has not changed since, return this
        content, once; whatever the next load is of, the content is released."""
        self._preloaded = _version(path), content

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Tensors on the CPU and plain types, see `load_torch_file`; or what was preloaded."""
        self.wait()
        preloaded, self._preloaded = self._preloaded, None
        if preloaded and preloaded[0] == _version(path):
            return preloaded[1]
        return load_torch_file(path)

    def teardown(self) -> None:
        thread, self._thread = self._thread, None
        try:
            self.wait()
        finally:
            if thread:
                thread.shutdown()


def wait_for_checkpoint(trainer: L.Trainer) -> None:
    """Until the thread has written the checkpoint that it is writing, if it is."""
    if isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO):
        trainer.strategy.checkpoint_io.wait()


def snapshot(content: dict[str, Any]) -> dict[str, Any]:
    """The same content with copies of its tensors on the CPU, which training cannot change."""
    return apply_to_collection(content, Tensor, lambda t: t.detach().to("cpu", copy=True))


def _version(path: str | Path) -> tuple[int, ...]:
    """Another one after the file was replaced or written to; empty if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _save(content: dict[str, Any], targets: list[Path]) -> dict[Path, str]:
    """Write the first target, and the others as copies of it; by target what went wrong, or an
    empty string."""
    written: Path | None = None
    problems = {}
    for target in targets:
        problems[target] = _save_one(content, target, written)
        if not problems[target]:
            written = written or target
    return problems


def _save_one(content: dict[str, Any], target: Path, same: Path | None) -> str:
    """What went wrong, or an empty string. same: a file that holds the content."""

    def write(file: BinaryIO) -> None:
        if same is None:
            torch.save(content, file)
        else:
            with same.open("rb") as source:
                shutil.copyfileobj(source, file)

    beside: Path | None = None
    try:
        beside = write_beside(target, write)
        verify(beside)
        _move(beside, target)
        return ""
    # torch's writer turns a full disk into a RuntimeError
    except (OSError, RuntimeError, InputError) as e:
        if beside is not None:
            remove(beside)
        return str(e).partition("\n")[0].removeprefix(f"{beside}: ") or type(e).__name__


def verify(path: Path) -> None:
    """Compare a file that was just written with its checksums, and see that it can be read.

    Raises:
        InputError: "PATH: why".
    """
    with path.open("rb") as file:
        check_archive(path, file)
    load_torch_file(path, mmap=True)


def _move(beside: Path, target: Path) -> None:
    """Into place; an older last.ckpt becomes previous.ckpt, unless that fails."""
    previous = target.with_name("previous.ckpt")
    is_kept = target.name == "last.ckpt" and target.exists()
    if is_kept:
        os.replace(target, previous)
    try:
        os.replace(beside, target)
    except OSError:
        if is_kept:
            with contextlib.suppress(OSError):
                os.replace(previous, target)
        raise
