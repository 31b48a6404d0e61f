"""How many files a process may have open, pipes and shared memory included."""

import contextlib
import errno
import resource

from detector.system.errors import InputError

BASE, OF_A_WORKER = 48, 12  # of a process that trains; of each loader process, for training and validation together
TOO_MANY = (errno.EMFILE, errno.ENFILE)
ADVICE = "raise it, as in: ulimit -n 4096, or lower --data.workers"


def allow_workers(workers: int) -> None:
    """Before loader processes start: torch passes batches as open files, and one that lacks them waits for ever. The limit is
    raised as far as the system lets a process do so.

    Raises:
        InputError: that is not enough.
    """
    wanted = BASE + OF_A_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not workers or soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft < wanted:
        raise InputError(f"{workers} loader processes need about {wanted} open files, and the limit is {soft}: {ADVICE}")


def is_too_many(error: BaseException | None) -> bool:
    """Whether there were too many open files, for an error or what it came from. torch's and those of workers are words."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if (isinstance(error, OSError) and error.errno in TOO_MANY) or "Too many open files" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def too_many() -> str:
    """What to do."""
    return f"too many open files, and the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}: {ADVICE}"
