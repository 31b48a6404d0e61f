"""Signals that ask a command to end: SIGTERM, SIGUSR1, Ctrl-C, and SIGHUP of a closed terminal."""

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from boltbox.detector.system.operating_system import SIGHUP, STOP_SIGNALS
from boltbox.detector.system.rank_zero import rank_zero_print

Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def caught(handler: Handler) -> Iterator[None]:
    """Call `handler` for these signals. Under nohup SIGHUP stays ignored. After a SIGHUP, output to
    the terminal, which is gone, is dropped. Another thread than the main one, which Python does not
    allow to, catches none."""

    def handle(number: int, frame: FrameType | None) -> None:
        if number == SIGHUP:
            leave_terminal()
        handler(number, frame)

    before = {}
    is_main = threading.current_thread() is threading.main_thread()
    for number in STOP_SIGNALS:
        under_nohup = number == SIGHUP and signal.getsignal(number) == signal.SIG_IGN
        if is_main and not under_nohup:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            if previous is None:  # installed by C code, which Python cannot restore
                previous = signal.SIG_DFL
            signal.signal(number, previous)


def exit_on_signals() -> contextlib.AbstractContextManager[None]:
    """These signals raise SystemExit, so that `finally` ends the processes that were started."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return caught(leave)


def leave_terminal() -> None:
    """Redirect standard output and error to the null device if they go to a terminal."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # closed
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class StopSignal:
    """Records a signal within `caught(stop_signal.handle)`; a second SIGINT interrupts.

    Lightning's handler would save nothing on Ctrl-C, exit with code 0 on SIGTERM, and communicate
    with other processes from within the handler.

    Attributes:
        received: The signal's number, 0 if there was none.
    """

    def __init__(self) -> None:
        self.received = 0

    @property
    def exit_code(self) -> int:
        """As shells have it: 143 for SIGTERM, 130 for Ctrl-C, 129 for SIGHUP, 138 for SIGUSR1."""
        return 128 + self.received

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        rank_zero_print(
            f"\n{signal.Signals(number).name}: finishing the batch, then saving, unless a"
            " validation runs or comes next"
        )
