"""Checkpoints that are written beside their place, verified, and moved there; by a thread, if the
caller does not wait."""

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import numpy as np
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from boltbox.detector.checkpoint.reader import Checkpoint
from boltbox.detector.system.atomic_file import remove, sync_folder, write_beside
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.torch_file import load_torch_file, refused_class


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target, verifies what it wrote, and only then moves; `last.ckpt` leaves the
    one before it as `previous.ckpt`. Lightning's own way passes through $TMPDIR and may copy.

    A disk that is full or cannot be written to costs a warning; training continues, with the older
    checkpoints untouched, and boltbox.callbacks.Checkpoints ends a run with an error if files are
    missing in the end.

    Not Lightning's AsyncCheckpointIO: that one can only be waited for at its end, and lets any
    number of copies queue up.

    Attributes:
        failed: By path, why the newest content of a file is not on the disk. Complete once `wait`
            has returned.
        copies: If not None, the next save returns as soon as the content is copied in memory, and a
            thread writes, one file at a time: this one, then files of these names in the same
            folder, in this order.
        loaded: A checkpoint that was read and checked already: the next load of this file returns
            its content and does not read the file again.
    """

    def __init__(self) -> None:
        self.failed: dict[Path, str] = {}
        self.copies: Sequence[str] | None = None
        self.loaded: Checkpoint | None = None
        self._saving: Future[dict[Path, str]] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write the file, and those of `copies`.

        Args:
            checkpoint: The content.
            path: The file.
            storage_options: Not used.
        """
        self.wait()
        path = Path(path)
        # what a callback keeps may be numbers of NumPy, which no reader accepts
        checkpoint = apply_to_collection(checkpoint, np.generic, np.generic.item)
        if self.copies is None:
            self._report(_save(checkpoint, [path]))
            return
        targets = [path] + [path.with_name(name) for name in self.copies]
        self.copies = None
        # copies of the tensors on the CPU, which training cannot change
        content = apply_to_collection(checkpoint, Tensor, lambda t: t.detach().to("cpu", copy=True))
        thread = ThreadPoolExecutor(1, "checkpoint")  # for this save: a fork would not have it
        self._saving = thread.submit(_save, content, targets)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Until the last save has ended, well or not; it prints what could not be saved.

        Raises:
            InputError: The content names a class that no reader would make.
        """
        saving = self._saving
        self._saving = None
        if saving:
            self._report(saving.result())

    def _report(self, problems: dict[Path, str]) -> None:
        """Remember and print what went wrong: by path, "" for what was saved."""
        for path, problem in problems.items():
            self.failed.pop(path, None)
            if problem:
                self.failed[path] = problem
                rank_zero_print(
                    f"warning: {path} could not be saved ({problem}); training continues, the"
                    " older checkpoints are intact"
                )

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Tensors on the CPU and plain types, see `load_torch_file`.

        Args:
            path: The file.

        Returns:
            The content.
        """
        self.wait()
        loaded = self.loaded
        self.loaded = None  # the tensors belong to the caller
        if loaded and loaded.path == Path(path):
            return loaded.content
        return load_torch_file(path)

    def teardown(self) -> None:
        self.wait()


def wait_for_checkpoint(trainer: L.Trainer) -> None:
    """Until the thread has written the checkpoint that it is writing, if it is.

    Args:
        trainer: Whose checkpoints.
    """
    if isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO):
        trainer.strategy.checkpoint_io.wait()


def _save(content: dict[str, Any], targets: list[Path]) -> dict[Path, str]:
    """Write the same content to each target, from the second on as a copy; by target what went
    wrong, "" if nothing did."""
    problems: dict[Path, str] = {}
    write = partial(torch.save, content)
    for target in targets:
        problems[target] = _replace(target, write)
        if not problems[target]:
            write = partial(_copy, target)
    return problems


def _replace(target: Path, write: Callable[[BinaryIO], None]) -> str:
    """Write beside the target, verify that file, and move it; what went wrong, "" if nothing did.
    Raises InputError if the content names a class, as it would the next time too."""
    beside: Path | None = None
    try:
        beside = write_beside(target, write)
        load_torch_file(beside, mmap=True)
        _move(beside, target)
    except (OSError, RuntimeError, InputError) as e:
        if beside is not None:
            remove(beside)
        if name := refused_class(e.__cause__):
            raise InputError(
                f"{target} would hold a {name}: state_dict may return tensors and Python's types"
                " only"
            ) from None
        # torch replaces the disk's error by one of its own
        error = e.__context__ if isinstance(e.__context__, OSError) else e
        problem = str(error).partition("\n")[0].removeprefix(f"{beside}: ")
        return problem if problem else type(error).__name__
    return ""


def _copy(source: Path, file: BinaryIO) -> None:
    with source.open("rb") as content:
        shutil.copyfileobj(content, file)


def _move(beside: Path, target: Path) -> None:
    """Into place, on the disk; an older last.ckpt becomes previous.ckpt, unless that fails."""
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
    sync_folder(target.parent)
