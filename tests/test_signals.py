"""What a closed terminal does, and too few open files: one way out, with what there is."""

import fcntl
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import cli
from detector.data.images import image_sizes
from detector.data.loading.worker import WorkerContext
from detector.system import open_files
from detector.system.errors import InputError
from detector.system.signals import STOP, catch, give_back
from detector.training.stop_signal import StopSignal


def test_a_closed_terminal_asks_to_stop() -> None:
    """The process in it goes on, may print, and leaves with 129."""
    terminal, its_end = pty.openpty()
    ready, done = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.setsid()
            fcntl.ioctl(its_end, termios.TIOCSCTTY, 0)
            os.close(terminal)
            os.dup2(its_end, 1)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            stop = StopSignal()
            stop.install()
            os.write(done, b"x")
            for _ in range(600):
                if stop.received:
                    os.write(1, b"saved\n")
                    code = stop.exit_code
                    break
                time.sleep(0.1)
        finally:
            os._exit(code)
    os.close(its_end)
    os.read(ready, 1)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 129
    for descriptor in (ready, done):
        os.close(descriptor)


def test_nohup_is_respected_and_everything_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detector.system.signals.leave_terminal", lambda: None)  # pytest's is still there
    before = {number: signal.getsignal(number) for number in STOP}
    seen: list[int] = []
    try:
        for number, wanted in ((signal.SIG_IGN, []), (signal.SIG_DFL, [signal.SIGHUP])):
            signal.signal(signal.SIGHUP, number)
            replaced = catch(lambda number, frame: seen.append(number))
            os.kill(os.getpid(), signal.SIGHUP)
            give_back(replaced)
            assert seen == wanted
            assert signal.getsignal(signal.SIGHUP) == number
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_worker_ends_with_its_loader_only() -> None:
    """Not by the signals that the training process gets too; one that hangs is killed."""
    worker = WorkerContext().Process(target=time.sleep, args=(600,))
    worker.start()
    assert worker.pid
    for number in STOP:
        os.kill(worker.pid, number)
    assert worker.join(0.2) is None
    assert worker.is_alive()
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "nothing is blocked in this process"


LIMITED = """
import contextlib, os, resource, sys
import cli
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
for workers in ("2", "0"):
    try:
        cli.main([*sys.argv[1:], "--data.workers", workers])
    except SystemExit as leaving:
        print(f"exit code {leaving.code} with {workers} workers", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        while True:
            os.open(os.devnull, os.O_RDONLY)
os._exit(0)  # what torch does at the end needs files
"""


def test_too_few_open_files(small_data: Path, here: Path) -> None:
    """With loader processes it is told before they start: they would wait for ever. Without, when none can be."""
    options = f"fit --data.dataset {small_data} --data.image_size 64 --trainer.accelerator cpu"
    options += " --trainer.precision 32-true --model.width_multiple 0.125 --trainer.max_epochs 1"
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parent)}
    line = [sys.executable, "-c", LIMITED, *options.split()]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    for workers in (2, 0):
        before, end, _ = done.stderr.partition(f"\nexit code 2 with {workers} workers\n")
        assert end, done.stderr
        error = before.splitlines()[-1]
        assert error.startswith("error: ")
        assert "the limit is 24: raise it, as in: ulimit -n 4096" in error
    assert "Traceback" not in done.stderr


def test_the_limit_is_raised_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [24, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: limits.__setitem__(0, wanted[0]))
    open_files.allow_workers(2)
    assert limits == [open_files.BASE + 2 * open_files.OF_A_WORKER, 4096]
    limits[1] = limits[0]
    with pytest.raises(InputError, match="ulimit -n"):
        open_files.allow_workers(8)
    open_files.allow_workers(0)


def test_an_image_that_could_not_be_opened_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("detector.data.images.image_size", fail)
    (tmp_path / "a.png").write_bytes(b"png")
    with pytest.raises(OSError, match="Too many") as e:
        image_sizes([tmp_path / "a.png"])
    assert open_files.is_too_many(e.value)
