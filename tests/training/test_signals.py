"""What a closed terminal does, and workers that outlive signals."""

import fcntl
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import termios

from made_runs import until

from boltbox.detector.data.loader import prepare_worker
from boltbox.detector.system.operating_system import STOP_SIGNALS
from boltbox.detector.system.signals import StopSignal, caught


def test_a_closed_terminal_asks_to_stop():
    """The process in it continues, may print, and ends with 129."""
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
            with caught(stop.handle):
                os.write(done, b"x")
                until(lambda: stop.received)
                os.write(1, b"saved\n")
                code = stop.exit_code
        finally:
            os._exit(code)
    os.close(its_end)
    os.close(done)
    os.read(ready, 1)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 129
    os.close(ready)


def test_nohup_is_respected_and_handlers_are_restored(monkeypatch):
    # pytest's terminal is still there
    monkeypatch.setattr("boltbox.detector.system.signals.leave_terminal", lambda: None)
    before = signal.getsignal(signal.SIGHUP)
    received = []
    try:
        for handler, expected in ((signal.SIG_IGN, []), (signal.SIG_DFL, [signal.SIGHUP])):
            signal.signal(signal.SIGHUP, handler)
            with caught(lambda number, frame: received.append(number)):
                os.kill(os.getpid(), signal.SIGHUP)
            assert received == expected
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_python_ends_with_a_worker_that_hangs():
    """Also with one that torch still watches."""
    code = """
import time
from boltbox.detector.data.loader import make_loader

class Hangs:
    def __getitem__(self, key):
        time.sleep(600)

batches = iter(make_loader(Hangs(), [[0]], list, workers=1))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=240, stderr=subprocess.PIPE)
    assert done.returncode == 0
    assert not done.stderr


def test_a_worker_outlives_signals():
    """The training process gets them too, and needs its workers until it ends."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    sent = context.Event()

    def work():
        prepare_worker(0)
        ready.set()
        sent.wait()
        os._exit(5)

    worker = context.Process(target=work, daemon=True)
    worker.start()
    until(ready.is_set, "the start of the worker", lambda: worker.exitcode)
    for number in STOP_SIGNALS:
        os.kill(worker.pid, number)
    sent.set()
    worker.join()
    assert worker.exitcode == 5
