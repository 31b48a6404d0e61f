"""One training in a process of its own, so that its end is nobody else's."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from boltbox.detector.distributed.process_group import child_environment


class Trial(NamedTuple):
    """What came of it. measured: the Stopwatch's, empty after an error · error: in one line, empty
    if all went well."""

    measured: dict[str, Any]
    error: str

    @property
    def rate(self) -> float:
        """Images a second; 0 after an error."""
        return self.measured["images"] / self.measured["seconds"] if self.measured else 0.0


def attempt(line: Sequence[str], report: Path, deadline: float) -> Trial:
    """Run a command of ours that leaves the Stopwatch's `report`, and all that it starts. After
    `deadline` seconds it is given up; nothing of it is left running, whatever happens: it dies with
    this process, which a signal may end before Popen is back.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            line, env=child_environment(), stdout=log, stderr=log, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(deadline)
            code = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    measured = json.loads(report.read_text()) if code == 0 and report.is_file() else {}
    return (
        Trial(measured, "") if measured.get("steps") else Trial({}, reason(code, output, deadline))
    )


def reason(code: int | None, output: str, deadline: float) -> str:
    """Why a training failed, in a sentence.

    Args:
        code: its exit code; None: it was given up after `deadline` seconds.
        output: all that it printed.
    """
    if code is None:
        return f"not done within {deadline:g} s"
    if code == -signal.SIGKILL:
        return "killed by the system (SIGKILL), as it does when memory runs out"
    if code == 0:
        return "the training ended before there was anything to measure"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[0] if errors else lines[-1] if lines else f"exit code {code}"
