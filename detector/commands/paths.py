"""Paths of a command line that lead nowhere, found before anything is imported that takes
seconds. The readers of the files check again."""

from collections.abc import Mapping
from glob import has_magic
from os.path import exists, isfile
from typing import Any

from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.published import PUBLISHED, unfit


def check_paths(options: Mapping[str, Any]) -> None:
    """
    Args:
        options: by flat name, see `CommandLine`.

    Raises:
        InputError: a data set, checkpoint, file of weights or source is not there.
    """
    for name, is_missing in MISSING.items():
        value = options.get(name)
        # a training that is resumed is not started from weights, which may be gone
        is_needed = name != "model.start.weights" or "ckpt_path" not in options
        if is_needed and isinstance(value, str) and value != "null":
            is_missing(value)


def _dataset(value: str) -> None:
    if value != "demo" and not exists(value):
        raise InputError(f"{value}: no such file (data.dataset)")


def _checkpoint(value: str) -> None:
    if why := unfit(value):
        raise InputError(why)
    if value not in ("last", "best", "auto", *PUBLISHED) and not exists(value):
        raise InputError(
            f"ckpt_path {value}: no such file; give a checkpoint, a run folder, `last`, `best` or"
            " `auto`"
        )


def _weights(value: str) -> None:
    if why := unfit(value):
        raise InputError(why)
    if value not in PUBLISHED and not isfile(value):
        raise InputError(
            f"{value}: no such weights file (model.start.weights); docs/weights.md has the names"
            " of published ones"
        )


def _source(value: str) -> None:
    is_stream = "://" in value or value.isdecimal() or value == "-"
    if not is_stream and not has_magic(value) and not exists(value):
        raise InputError(f"source {value}: no image or video file there")


MISSING = {
    "data.dataset": _dataset,
    "ckpt_path": _checkpoint,
    "model.start.weights": _weights,
    "source": _source,
}
