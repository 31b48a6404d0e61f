"""The run of a command: its folder and its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L


@dataclass(frozen=True)
class Run:
    """What the callbacks of a run need to know.

    folder: of the run · config: text of its config.yaml · changed: by flat name, the options that
    differ from the defaults of the command · is_new: a fit that may not continue an older one in
    this folder · checkpoint: the training checkpoint that is restored · resume: the command line
    that continues the run.
    """

    folder: Path
    config: str
    changed: dict[str, Any]
    is_new: bool
    checkpoint: Path | None
    resume: str


# (run, callbacks with options of the command line, the user's own, whether a progress bar is
# wanted) -> all, in their order
ArrangeCallbacks = Callable[[Run, list[L.Callback], list[L.Callback], bool], list[L.Callback]]
