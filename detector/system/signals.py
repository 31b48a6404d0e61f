"""Signals that ask a command to end: SIGTERM, Ctrl-C, and SIGHUP of a terminal that was closed."""

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from boltbox.detector.system.rank_zero import rank_zero_print

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def caught(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` for these signals. Under nohup, where SIGHUP is ignored, it stays ignored.
    After a SIGHUP what is printed to a terminal is dropped: it is gone, and writing to it would
    fail."""

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        handler(number, frame)

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    before = {n: signal.signal(n, handle) for n in STOP if not (n == signal.SIGHUP and ignored)}
    try:
        yield
    finally:
        for number, known in before.items():  # None: not Python's, which cannot be put back
            signal.signal(number, known or signal.SIG_DFL)


def exit_on_signals() -> contextlib.AbstractContextManager[None]:
    """These signals raise SystemExit, as Ctrl-C raises an exception, so that no process that was
    started is left running."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return caught(leave)


def leave_terminal() -> None:
    """Standard output and error go nowhere if they went to a terminal."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # closed
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class StopSignal:
    """Between `install` and `restore`, SIGTERM, SIGINT and SIGHUP only set `received`, the signal's
    number; a second SIGINT interrupts.

    Lightning's own handler would save nothing on Ctrl-C, exit with code 0 on SIGTERM, and
    communicate with other processes from within the handler.
    """

    def __init__(self) -> None:
        self.received = 0
        self._caught = contextlib.ExitStack()

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.received = 0
            self._caught.enter_context(caught(self._handle))

    def restore(self) -> None:
        self._caught.close()

    @property
    def exit_code(self) -> int:
        """As shells and schedulers know it: 143 for SIGTERM, 130 for Ctrl-C, 129 for a closed
        terminal."""
        return 128 + self.received

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        rank_zero_print(f"\n{signal.Signals(number).name}: finishing the batch, then saving")
