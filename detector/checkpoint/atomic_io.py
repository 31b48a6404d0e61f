"""Checkpoints that are written aside, verified, and moved into place."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from detector.checkpoint.file import CheckpointFile, FileVersion, validate_file
from detector.system.atomic_file import write_beside
from detector.system.rank_zero import rank_zero_print


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target, verifies what it wrote, and only then moves; `last.ckpt` leaves the one before it as
    `previous.ckpt`. Lightning's own way passes through $TMPDIR and may copy.

    A disk that is full or cannot be written to is told in one line; training goes on, with the older checkpoints untouched.

    Attributes:
        preloaded: a checkpoint that was read already. The next load returns its content, once, if it is of that file and the
            file has not changed since; whatever the next load is of, the content is let go of with it.
    """

    preloaded: CheckpointFile | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        target, problem = Path(path), ""
        try:
            beside = write_beside(target, lambda file: torch.save(checkpoint, file))
            problem = validate_file(beside)
        except (OSError, RuntimeError) as e:  # torch's writer turns a full disk into a RuntimeError
            problem = str(e).splitlines()[0]
        if problem:
            target.with_name(f".{target.name}.tmp").unlink(missing_ok=True)
            rank_zero_print(
                f"warning: {target} could not be saved ({problem}); training goes on, the older checkpoints are intact"
            )
            return
        if target.name == "last.ckpt" and target.exists():
            os.replace(target, target.with_name("previous.ckpt"))
        os.replace(beside, target)

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """As Lightning's, without reading the file a second time; see `preloaded`."""
        preloaded, self.preloaded = self.preloaded, None
        if preloaded is not None and os.path.exists(path) and FileVersion.of(path) == preloaded.version:
            return preloaded.content
        return super().load_checkpoint(path, *args, **options)
