"""Signals that ask a command to end: SIGTERM, Ctrl-C, and SIGHUP of a terminal that was closed."""

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def catch(
    handler: Callable[[int, FrameType | None], None], numbers: tuple[int, ...] = STOP
) -> dict[int, Any]:
    """Call `handler` for these signals; what was done before, for `give_back`. Under nohup, where
    SIGHUP is ignored, it stays ignored. After a SIGHUP what is printed to a terminal is dropped: it
    is gone, and writing to it would fail."""

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        handler(number, frame)

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return {n: signal.signal(n, handle) for n in numbers if not (n == signal.SIGHUP and ignored)}


def give_back(before: Mapping[int, Any]) -> None:
    """None is a handler that was not Python's, which cannot be put back."""
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """These signals raise SystemExit, as Ctrl-C raises an exception, so that no process that was
    started is left running."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = catch(leave)
    try:
        yield
    finally:
        give_back(before)


def leave_terminal() -> None:
    """Standard output and error go nowhere if they went to a terminal."""
    for descriptor in (1, 2):
        try:
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
        except OSError:  # closed
            continue
