"""What Linux, macOS and Windows do differently. Each function uses what Linux offers and falls back
to what the system has; no other file asks which system it runs on."""

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGUSR1 = getattr(signal, "SIGUSR1", None)  # from Slurm; Lightning would answer by a requeue
STOP_SIGNALS = tuple(filter(None, (signal.SIGTERM, signal.SIGINT, SIGHUP, SIGUSR1)))
SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM cannot be caught
# for os.open before fsync: Windows needs a file that is open for writing
SYNC_MODE = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # for os.open: fail on a symbolic link
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PARENT = "BOLTBOX_PARENT"  # process id of the command whose training this process is
FIRST_RANK = "BOLTBOX_FIRST_RANK"  # process id of the rank that starts the machine's other ranks
GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")  # of the machine or, within a container, of that


def available_cores() -> int:
    """Number of cores that this process may use; where the system does not say, of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int | None:
    """Memory of the machine in bytes; None where the system does not say (Windows)."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def free_memory() -> int:
    """Bytes of memory that this process can still get: what the machine has free or, if less, the
    limit of its container or Slurm job; without /proc, half of the machine's."""
    if not GROUPS_OF_PROCESS.is_file():
        memory = total_memory()
        return memory // 2 if memory else 0
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
    (kilobytes,) = re.findall(r"MemAvailable:\s*(\d+) kB", meminfo)
    free = int(kilobytes) * 1024
    # lines 0::/a/b (control groups of version 2) or 4:memory:/a/b (1); a group has the limits
    # of its parents too
    for path in re.findall(r":(?:memory)?:/(.*)", GROUPS_OF_PROCESS.read_text()):
        for group in Path(path, "memory.max").parents:
            for limit in (f"{group}/memory.max", f"memory/{group}/memory.limit_in_bytes"):
                with contextlib.suppress(OSError, ValueError):  # no such file, or no limit ("max")
                    free = min(free, int((GROUPS / limit).read_text()))
    return free


def start_method() -> str:
    """How worker processes start: on Linux as forks, which share what is loaded; elsewhere, or if
    the program has chosen (`multiprocessing.set_start_method`), as multiprocessing has it."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen is None and sys.platform == "linux":
        return "fork"
    return multiprocessing.get_start_method()


def die_with_this_parent() -> None:
    """Have the kernel kill this process when its parent is gone. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone, if it is a rank or a training
    that Lightning, torchrun or a boltbox command started.

    Other processes may inherit the variables: those of the first rank have LOCAL_RANK 0 or none,
    and workers of torchrun have another parent.
    """
    parent = os.environ.pop(PARENT, None)
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if os.environ.get("LOCAL_RANK", "0") != "0" and not by_torchrun:
        parent = os.environ.pop(FIRST_RANK, parent)
    if parent or by_torchrun:
        die_with_this_parent()
    if parent and os.getppid() != int(parent):  # the parent ended before that call
        os.kill(os.getpid(), SIGKILL)


def announce_first_rank() -> None:
    """Tell the ranks that Lightning starts their parent, see `die_with_parent`."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[FIRST_RANK] = str(os.getpid())


def kill_group(pid: int) -> None:
    """Kill a process and all others of its process group; on Windows that process only."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(pid, SIGKILL)
        else:
            os.kill(pid, SIGKILL)


def has_memory_files() -> bool:
    """Whether files can be made in memory (`os.memfd_create`)."""
    return hasattr(os, "memfd_create")


def reserve(descriptor: int, size: int) -> None:
    """Make a file `size` bytes long. On Linux the disk sets them aside.

    Raises:
        OSError: the disk is full.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def flush_to_disk(descriptor: int) -> None:
    """Return when a file's content is on the disk; on macOS fsync leaves it in the disk's cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """For one thread of one process at a time; the others wait. Without effect where there are no
    locks: on Windows and some file systems, and if the path does not exist.

    Args:
        path: A file or folder.
    """
    with contextlib.ExitStack() as stack:
        if fcntl:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def try_lock(descriptor: int) -> bool:
    """Lock a file until it is closed or this process ends; child processes do not hold the lock.
    Always succeeds where there are no locks: on Windows and some file systems.

    Args:
        descriptor: Of a file that is open for writing.

    Returns:
        False if another process has locked the file.
    """
    if fcntl is None:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], list[str]]]:
    """Capture what C libraries write to the standard error of this process.

    Yields:
        A function that returns the lines so far.
    """
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:

        def lines() -> list[str]:
            file.seek(0)
            return file.read().decode(errors="replace").splitlines()

        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
