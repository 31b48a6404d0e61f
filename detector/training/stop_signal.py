"""SIGTERM, SIGINT and SIGHUP as a flag that is checked between two batches."""

import signal
import threading
from types import FrameType
from typing import Any

from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.signals import catch, give_back


class StopSignal:
    """Between `install` and `restore`, SIGTERM, SIGINT and SIGHUP only set `received`, the signal's
    number; a second SIGINT interrupts.

    Lightning's own handler would save nothing on Ctrl-C, exit with code 0 on SIGTERM, and
    communicate with other processes from within the handler.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.received = 0
            self._before = catch(self._handle)

    def restore(self) -> None:
        give_back(self._before)
        self._before = {}

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
