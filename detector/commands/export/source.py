"""The network to export, from a checkpoint of ours or from YOLOv5's published weights."""

from pathlib import Path

from boltbox.detector.checkpoint.reader import find_trained
from boltbox.detector.commands.export.runtime import format_of
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.trained import Trained


def find_source(ckpt_path: str, run: str | None = None) -> Trained:
    """`last`, `best`, a checkpoint of ours (.ckpt) or a YOLOv5 file (.pt).

    Raises:
        InputError: there is none, or it cannot be read.
    """
    if format_of(ckpt_path):
        raise InputError(
            f"ckpt_path {ckpt_path}: this is an exported file already; give the checkpoint that it"
            " was made from"
        )
    trained = None if ckpt_path == "auto" else find_trained(ckpt_path, Path(run) if run else None)
    if trained is None:
        raise InputError("ckpt_path auto: that is for fit; give `last`, `best` or a file")
    return trained
