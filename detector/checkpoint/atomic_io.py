"""Checkpoints that are written aside, verified, and moved into place; by a thread, if the caller
does not wait."""

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

from boltbox.detector.checkpoint.file import CheckpointFile, FileVersion, validate_file
from boltbox.detector.checkpoint.restricted import load_restricted
from boltbox.detector.checkpoint.snapshot import snapshot
from boltbox.detector.system.atomic_file import remove, write_beside
from boltbox.detector.system.rank_zero import rank_zero_print

CHUNK = 1 << 20  # bytes that are copied or compared at a time


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target, verifies what it wrote, and only then moves; `last.ckpt` leaves the
    one before it as `previous.ckpt`. Lightning's own way passes through $TMPDIR and may copy.

    A disk that is full or cannot be written to costs a warning; training goes on, with the older
    checkpoints untouched, and boltbox.callbacks.Checkpoints ends a run with an error if files are
    missing in the end.

    Not Lightning's AsyncCheckpointIO: that one cannot be waited for but by its end, and lets any
    number of copies queue up.

    Attributes:
        preloaded: a checkpoint that was read already. The next load returns its content, once, if
            it is of that file and the file has not changed since; whatever the next load is of, the
            content is let go of with it.
        failed: by path, why the newest content of a file is not on the disk. Complete once `wait`
            has returned.
    """

    preloaded: CheckpointFile | None = None

    def __init__(self) -> None:
        self._background = False
        self._copies: tuple[str, ...] = ()
        self._thread: ThreadPoolExecutor | None = None
        self._saving: Future[dict[Path, str]] | None = None
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

    def copy(self, source: Path, target: Path) -> None:
        """Save under `target` what the file `source` holds."""
        self.wait()
        self._report({target: _save_one({}, target, source)})

    @property
    def is_writing(self) -> bool:
        return self._saving is not None and not self._saving.done()

    def wait(self) -> None:
        """Until the last save has ended, well or not; it prints what could not be saved."""
        saving, self._saving = self._saving, None
        if saving:
            self._report(saving.result())

    def look(self) -> None:
        """As `wait`, if there is nothing to wait for."""
        if not self.is_writing:
            self.wait()

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
                    f"warning: {target} could not be saved ({problem}); training goes on, the older"
                    " checkpoints are intact"
                )

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Tensors on the CPU and plain types, see `load_restricted`; the file is not read a second
        time, see `preloaded`."""
        self.wait()
        preloaded, self.preloaded = self.preloaded, None
        if (
            preloaded is not None
            and os.path.exists(path)
            and FileVersion.of(path) == preloaded.version
        ):
            return preloaded.content
        return load_restricted(path, [])

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


def is_writing(trainer: L.Trainer) -> bool:
    """Whether the thread is writing a checkpoint."""
    io = trainer.strategy.checkpoint_io
    return isinstance(io, AtomicCheckpointIO) and io.is_writing


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
    """What went wrong, or an empty string. same: a file that holds the content, whole."""

    def write(file: BinaryIO) -> None:
        if same is None:
            torch.save(content, file)
        else:
            with same.open("rb") as source:
                shutil.copyfileobj(source, file, CHUNK)

    beside: Path | None = None
    try:
        beside = write_beside(target, write)
        if same is None:
            problem = validate_file(beside)
        else:
            problem = "" if _equal(same, beside) else f"it reads back otherwise than {same.name}"
        if not problem:
            _move(beside, target)
            return ""
    except (OSError, RuntimeError) as e:  # torch's writer turns a full disk into a RuntimeError
        problem = str(e).partition("\n")[0] or type(e).__name__
    if beside is not None:
        remove(beside)
    return problem


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


def _equal(path: Path, other: Path) -> bool:
    with path.open("rb") as a, other.open("rb") as b:
        while chunk := a.read(CHUNK):
            if chunk != b.read(len(chunk)):
                return False
        return not b.read(1)
