"""Checkpoints that are written beside their place, verified, and moved there; by a thread, if the
caller does not wait."""

import contextlib
import filecmp
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from boltbox.detector.system.atomic_file import remove, sync_folder, write_beside
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
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
        copies: if not None, the next save returns as soon as the content is copied in memory, and a
            thread writes, one file at a time; and files of these names in the same folder get what
            was written, after it and in this order.
    """

    def __init__(self) -> None:
        self._saving: Future[dict[Path, str]] | None = None
        self.failed: dict[Path, str] = {}
        self.copies: Sequence[str] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        self.wait()
        copies, self.copies = self.copies, None
        targets = [Path(path), *(Path(path).with_name(name) for name in copies or ())]
        if copies is None:
            self._report(_save(checkpoint, targets))
        else:
            thread = ThreadPoolExecutor(1, "checkpoint")  # for this save: a fork would not have it
            self._saving = thread.submit(_save, snapshot(checkpoint), targets)
            thread.shutdown(wait=False)

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

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Tensors on the CPU and plain types, see `load_torch_file`."""
        self.wait()
        return load_torch_file(path)

    def teardown(self) -> None:
        self.wait()


def wait_for_checkpoint(trainer: L.Trainer) -> None:
    """Until the thread has written the checkpoint that it is writing, if it is."""
    if isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO):
        trainer.strategy.checkpoint_io.wait()


def snapshot(content: dict[str, Any]) -> dict[str, Any]:
    """The same content with copies of its tensors on the CPU, which training cannot change."""
    return apply_to_collection(content, Tensor, lambda t: t.detach().to("cpu", copy=True))


def _save(content: dict[str, Any], targets: list[Path]) -> dict[Path, str]:
    """Write the first target, and the others as copies of it; by target what went wrong, or an
    empty string."""
    problems, written = dict[Path, str](), None
    for target in targets:
        beside: Path | None = None
        try:
            if written is None:
                beside = write_beside(target, partial(_write, content))
                load_torch_file(beside, mmap=True)  # compared with its checksums
            else:
                with open(written, "rb") as source:
                    beside = write_beside(target, partial(shutil.copyfileobj, source))
                if not filecmp.cmp(written, beside, shallow=False):
                    raise OSError(f"it differs from {written}")
            _move(beside, target)
            written, problems[target] = target, ""
        except (OSError, RuntimeError, InputError) as e:
            if beside is not None:
                remove(beside)
            problem = str(e).partition("\n")[0].removeprefix(f"{beside}: ")
            problems[target] = problem or type(e).__name__
    return problems


class _Output:
    """A file for torch's writer, which makes a RuntimeError of its own of an error of the disk."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as e:
            self.error = e
            raise


def _write(content: dict[str, Any], file: BinaryIO) -> None:
    """Raises OSError, like "No space left on device", if the disk takes no more."""
    output = _Output(file)
    try:
        torch.save(content, output)
    except RuntimeError as e:
        raise output.error or e from None


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
