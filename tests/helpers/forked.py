"""`python cli.py ...`, and the workers of pytest-xdist, without the seconds of their imports:
subprocess starts them as ever, but as a fork of this process."""

import atexit
import concurrent.futures.thread
import contextlib
import faulthandler
import functools
import gc
import inspect
import io
import logging
import multiprocessing.process
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from execnet.gateway_io import popen_bootstrapline
from lightning.fabric.utilities.rank_zero import _get_rank
from lightning.pytorch.utilities import rank_zero_only

MODULES = ("boltbox", "boltbox.__main__", "torch.distributed.run")
WORKER = [sys.executable, "-u", "-c", popen_bootstrapline]
_execute_child = subprocess.Popen._execute_child


@contextlib.contextmanager
def forks():
    """While this lasts, and for ever in processes that are started meanwhile, subprocess.Popen
    forks where the command line is `python cli.py`, one of MODULES or a worker of pytest-xdist
    (`python -u -c ...`, which reads what to do from its standard input). All else is as always:
    process ids, sessions, signals, pipes, environment, folder, exit codes. Not so: files of the
    current folder cannot be taken for modules that were imported long ago. Nothing happens outside
    of Linux."""
    if sys.platform != "linux":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", _start)
        yield


def _start(self, *given):
    """In place of Popen._execute_child, which leaves `pid` behind and closes the child's ends of
    the pipes."""
    how = inspect.signature(_execute_child).bind(self, *given).arguments
    program = _program(how["args"])
    if program is None:
        _execute_child(self, *given)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    self.pid = os.fork()
    if self.pid == 0:
        code = 1
        try:
            code = _become(how, *program)
        finally:
            os._exit(code)
    self._child_created = True
    self._close_pipe_fds(
        *(
            how[name]
            for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        )
    )


def _program(line):
    """argv, module (None: argv begins with a script), and whether its folder is left out of the
    path."""
    if isinstance(line, str | bytes | os.PathLike):
        return None
    words = list(map(os.fsdecode, line))
    if words == WORKER:
        return WORKER[2:3], None, True
    options = 1
    while words[options : options + 1] and words[options] in ("-u", "-P"):
        options += 1
    flags = words[1:options]
    rest = words[options:]
    if words[0] != sys.executable or not rest:
        return None
    if rest[0] == "-m" and rest[1] in MODULES:
        return rest[1:], rest[1], "-P" in flags
    return (rest, None, "-P" in flags) if Path(rest[0]).name == "cli.py" else None


def _become(how, argv, module, safe):
    """The new process, as far as the old one's state could be seen in it; its exit code."""
    gc.freeze()  # or the collector would touch, and so copy, all pages of the old process
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number == signal.SIGHUP:  # which nohup has ignored
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # wandb's and torch.distributed's are chained to it in a process that has used them
    sys.excepthook = sys.__excepthook__
    faulthandler.disable()
    atexit._clear()
    weakref.finalize._registry.clear()
    concurrent.futures.thread._threads_queues.clear()
    multiprocessing.util._finalizer_registry.clear()
    multiprocessing.process._children.clear()
    multiprocessing.util._run_after_forkers()
    atexit.register(multiprocessing.util._exit_function)
    if argv == WORKER[2:3]:
        subprocess.Popen._execute_child = _execute_child
    if how["start_new_session"]:
        os.setsid()
    if how["cwd"] is not None:
        os.chdir(how["cwd"])
    if how["env"] is not None:
        environment = {os.fsdecode(k): os.fsdecode(v) for k, v in how["env"].items()}
        os.environ.clear()
        os.environ.update(environment)
    # torchrun calls it often, and would look for the source of each function among all modules
    inspect.stack = functools.partial(inspect.stack, context=0)
    rank_zero_only.rank = _get_rank() or 0  # otherwise found when Lightning is imported
    _redirect(how)
    if argv == WORKER[2:3]:
        _close_pipes()  # to the other workers, which would wait for their end for ever
    folder = [] if safe else [os.getcwd() if module else str(Path(argv[0]).parent)]
    sys.path[:0] = [*folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = argv
    return _exit_code(module)


def _redirect(how):
    for target, source in enumerate(how[name] for name in ("p2cread", "c2pwrite", "errwrite")):
        if source not in (-1, target):
            os.dup2(source, target)
    for name in ("p2cwrite", "c2pread", "errread"):
        if how[name] != -1:
            os.close(how[name])
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 (the process's own)
    for target, name in ((1, "stdout"), (2, "stderr")):
        raw = open(target, "wb", buffering=0, closefd=False)  # noqa: SIM115 (the process's own)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", line_buffering=target == 2
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for known in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(known, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                # setStream would flush the old one, which its test may have closed
                handler.stream = sys.stderr


def _close_pipes():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself is gone
            if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                os.close(int(name))


def _exit_code(module):
    """Run it to its end, as the interpreter would."""
    code = 0
    try:
        if sys.argv == WORKER[2:3]:
            exec(popen_bootstrapline, {"__name__": "__main__"})
        elif module is None:
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            sys.modules.pop(module, None)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream.flush()
    return code & 0xFF
