"""`python cli.py ...` without the seconds that its imports take: a server that has made them forks a process a command."""

import atexit
import functools
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import cli

ROOT = Path(cli.__file__).parent


@functools.cache
def _server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cli"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
    multiprocessing.forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    return context


class Forked:
    """A command line that begins with Python and a script, started as subprocess.Popen would: in a session of its own, with
    this environment, in this folder, its output to a file."""

    def __init__(self, line: Sequence[object], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        arguments = [str(x) for x in line[1:]]
        self.process = _server().Process(target=_become, args=(arguments, dict(environment), str(folder), str(log)))
        self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutError(f"still running after {timeout:.0f} s")
        return self.process.exitcode


def _become(arguments: list[str], environment: dict[str, str], folder: str, log: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)  # of its workers: as usual
    sys.argv = arguments
    sys.path[:0] = environment.get("PYTHONPATH", "").split(":")
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves without
