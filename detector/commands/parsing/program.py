"""This program as people type it on the command line."""

import os
import shlex
import sys
from pathlib import Path


def program() -> str:
    """How this program was started."""
    return "boltbox" if Path(sys.argv[0]).stem == "boltbox" else "python cli.py"


def command_line(*words: str) -> str:
    """A command of this program, started in the same way as the running one: by python, boltbox or
    torchrun."""
    script = Path(sys.argv[0])
    start = ["python", str(script)] if script.name == "cli.py" else program().split()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        start = ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "--", str(script)]
    return shlex.join([*start, *words])
