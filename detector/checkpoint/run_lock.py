"""The lock on a run folder: one command at a time, with the processes that it starts, writes into
it."""

import contextlib
import fcntl
import os
import socket
from datetime import datetime
from pathlib import Path

from boltbox.detector.checkpoint.runs import check_run, make_run, refuse_foreign, remove_empty
from boltbox.detector.system.errors import InputError

_held: set[int] = set()  # descriptors of this process


class RunLock:
    """`.lock` in the run folder, locked, with a line that names the process which has it.

    The kernel gives the lock back when that process is gone, however it ends. It is one of flock:
    one of lockf is lost as soon as anything in the process closes the file, as a copy of the folder
    does. But processes that are forked share it, and workers of a DataLoader outlive a killed
    training by seconds: each closes its copy of the descriptor when it begins.

    Args:
        run: the folder.
    """

    def __init__(self, run: Path) -> None:
        self.run, self.path = run, Path(os.path.abspath(run)) / ".lock"
        self._descriptor: int | None = None
        self._made: list[Path] = []

    def take(self) -> None:
        """Make the folder if it is not there, and lock it. Where the file system has no locks, it
        is used without.

        Raises:
            InputError: another process has it, nothing can be written there, or what lies there is
                not of a run.
        """
        check_run(self.run)
        refuse_foreign(self.run)
        while self._descriptor is None:
            try:
                self._made += make_run(self.run)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except OSError as e:
                raise InputError(
                    f"run {self.run}: nothing can be written there ({e.strerror}); give another"
                    " folder with --run"
                ) from None
            _held.add(descriptor)
            if self._lock(descriptor):
                self._descriptor = descriptor
            else:
                _close(descriptor)

    def release(self) -> None:
        """Remove the file, and the folder if `take` has made it and it is empty. Nothing happens
        where it is not held: before `take`, a second time, in a forked process."""
        if self._descriptor in _held:
            with contextlib.suppress(OSError):
                self.path.unlink()
            _close(self._descriptor)
            remove_empty(self._made)
        self._descriptor = None

    def _lock(self, descriptor: int) -> bool:
        """Whether this process has it now; not if another one has removed the file meanwhile."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = os.pread(descriptor, 300, 0).decode(errors="replace")
            _close(descriptor)
            holder = "".join(c for c in told if c.isprintable()) or "another process"
            raise InputError(
                f"run {self.run} is in use by {holder}: wait until it has ended, or give another"
                " folder with --run"
            ) from None
        except OSError:  # there are no locks here
            pass
        try:
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                return False
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(descriptor, 0)
            os.pwrite(
                descriptor,
                f"process {os.getpid()} on {socket.gethostname()} "
                f"since {datetime.now():%F %T}".encode(),
                0,
            )
        return True


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def _forget() -> None:
    """In a forked process, which is another one's worker."""
    for descriptor in list(_held):
        _close(descriptor)


os.register_at_fork(after_in_child=_forget)
