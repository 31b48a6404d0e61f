"""Which code made something: versions of libraries, revision of this source tree."""

import platform
import subprocess
from functools import cache
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torchvision


def versions() -> dict[str, str]:
    """Of Python and the libraries that numbers depend on."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "lightning": str(L.__version__),
        "numpy": str(np.__version__),
    }


@cache
def git_revision() -> str | None:
    """The commit of this source tree, with a + if it was changed; None outside git. Asked once:
    what runs is what was there at the start."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty=+",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
