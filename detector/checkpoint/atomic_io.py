"""Checkpoints that are written aside, verified, and moved into place; by a thread, if the caller does not wait."""

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

from detector.checkpoint.file import CheckpointFile, FileVersion, validate_file
from detector.checkpoint.restricted import load_restricted
from detector.checkpoint.snapshot import snapshot
from detector.system.atomic_file import write_beside
from detector.system.rank_zero import rank_zero_print

CHUNK = 1 << 20  # bytes that are copied or compared at a time


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target, verifies what it wrote, and only then moves; `last.ckpt` leaves the one before it as
    `previous.ckpt`. Lightning's own way passes through $TMPDIR and may copy.

    A disk that is full or cannot be written to is told in one line; training goes on, with the older checkpoints untouched.

    Not Lightning's AsyncCheckpointIO: that one cannot be waited for but by its end, and lets any number of copies queue up.

    Attributes:
        preloaded: a checkpoint that was read already. The next load returns its content, once, if it is of that file and the
            file has not changed since; whatever the next load is of, the content is let go of with it.
    """

    preloaded: CheckpointFile | None = None

    def __init__(self) -> None:
        self._background = False
        self._copies: tuple[str, ...] = ()
        self._thread: ThreadPoolExecutor | None = None
        self._saving: Future[list[str]] | None = None

    @contextlib.contextmanager
    def background(self, *copies: str) -> Iterator[None]:
        """A save within returns as soon as the content is copied in memory; a thread writes. One is under way at a time.

        Args:
            copies: names of files in the same folder that get what was written, after it and in this order.
        """
        self._background, self._copies = True, copies
        try:
            yield
        finally:
            self._background, self._copies = False, ()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.wait()
        targets = [Path(path), *(Path(path).with_name(name) for name in self._copies)]
        if self._background:
            self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
            self._saving = self._thread.submit(_save, snapshot(checkpoint), targets)
        else:
            _tell(_save(checkpoint, targets))

    def wait(self) -> None:
        """Until the last save has ended, well or not; it tells what could not be saved."""
        saving, self._saving = self._saving, None
        if saving:
            _tell(saving.result())

    def look(self) -> None:
        """As `wait`, if there is nothing to wait for."""
        if self._saving and self._saving.done():
            self.wait()

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Tensors on the CPU and plain types, see `load_restricted`; the file is not read a second time, see `preloaded`."""
        self.wait()
        preloaded, self.preloaded = self.preloaded, None
        if preloaded is not None and os.path.exists(path) and FileVersion.of(path) == preloaded.version:
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


def _save(content: dict[str, Any], targets: list[Path]) -> list[str]:
    """Write the first target, and the others as copies of it; a line for each that could not be saved."""
    written: Path | None = None
    problems = []
    for target in targets:
        problem = _save_one(content, target, written)
        if problem:
            problems.append(
                f"warning: {target} could not be saved ({problem}); training goes on, the older checkpoints are intact"
            )
        else:
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

    try:
        beside = write_beside(target, write)
        if same is None:
            problem = validate_file(beside)
        else:
            problem = "" if _equal(same, beside) else f"it reads back otherwise than {same.name}"
    except (OSError, RuntimeError) as e:  # torch's writer turns a full disk into a RuntimeError
        problem = str(e).splitlines()[0]
    if problem:
        target.with_name(f".{target.name}.tmp").unlink(missing_ok=True)
        return problem
    if target.name == "last.ckpt" and target.exists():
        os.replace(target, target.with_name("previous.ckpt"))
    os.replace(beside, target)
    return ""


def _equal(path: Path, other: Path) -> bool:
    with path.open("rb") as a, other.open("rb") as b:
        while chunk := a.read(CHUNK):
            if chunk != b.read(len(chunk)):
                return False
        return not b.read(1)


def _tell(problems: list[str]) -> None:
    for problem in problems:
        rank_zero_print(problem)
