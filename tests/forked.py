"""`python cli.py ...` without the seconds that its imports take: a server that has made them forks a process a command."""

import atexit
import functools
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import cli
from detector.distributed.process_group import die_with_parent

ROOT = Path(cli.__file__).parent


@functools.cache
def server() -> multiprocessing.context.ForkServerContext:
    """Whoever starts workers by the forkserver method calls it first: there is one server a process, and the first decides what
    it has imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cli", "callbacks.recipe", "detector.commands.lightning_cli"])
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
    this environment, in this folder, its output to a file. With `--trainer.devices N` so many processes, which are told their
    places as Lightning would."""

    def __init__(self, line: Sequence[object], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        arguments = [str(x) for x in line[1:]]
        self.process = server().Process(target=_become, args=(arguments, dict(environment), str(folder), str(log)))
        self.process.start()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it; of several processes the first one's."""
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
    others = _fork_others(arguments)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        for other in others:
            os.waitpid(other, 0)
        atexit._run_exitfuncs()  # multiprocessing leaves without


def _fork_others(arguments: list[str]) -> list[int]:
    """The processes after the first, which die with it. All have the places that Lightning's launcher would give them."""
    count = int(arguments[arguments.index("--trainer.devices") + 1]) if "--trainer.devices" in arguments else 1
    if count == 1:
        return []
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "NODE_RANK": "0"}
    os.environ.update({"WORLD_SIZE": str(count), "LOCAL_RANK": "0", **place, **os.environ})
    others = []
    for rank in range(1, count):
        process = os.fork()
        if process == 0:
            os.environ["LOCAL_RANK"] = str(rank)
            os.environ["BOLTBOX_RUN"] = arguments[arguments.index("--run") + 1]  # as the first process would
            die_with_parent()
            return []
        others.append(process)
    return others
