"""How a command ends: errors that the user can put right in one sentence, with exit code 2."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.rank_zero import printable

LONGEST = 2000  # characters of a message; what the user gave may be longer than anyone reads
MISCONFIGURED = "MisconfigurationException"  # Lightning's, whose import takes seconds
DISK = {  # errors of the system that a user can put right: a wrong path, no room, no right
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES),
}


@contextlib.contextmanager
def one_sentence_errors() -> Iterator[None]:
    """Print an InputError, a MisconfigurationException, and errors of the disk as one sentence, in
    one of all processes.

    Raises:
        SystemExit: with code 2, after such an error.
    """
    try:
        yield
    except Exception as e:
        disk = isinstance(e, OSError) and e.errno in DISK
        if not (disk or isinstance(e, InputError) or type(e).__name__ == MISCONFIGURED):
            raise
        if disk or _is_first(str(e)):
            text = printable(in_one_line(e))
            if len(text) > LONGEST:
                text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
            print(f"error: {text}", file=sys.stderr)
        raise SystemExit(2) from None


def _is_first(error: str) -> bool:
    """Whether this process is the one to print an error that several may have."""
    if "torch" not in sys.modules:
        return os.environ.get("LOCAL_RANK", "0") == "0"
    from boltbox.detector.distributed.process_group import first_to_report

    return first_to_report(error)
