"""How a command ends: errors that the user can put right in one sentence, with exit code 2."""

import contextlib
import errno
import sys
from collections.abc import Iterator

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from boltbox.detector.distributed.process_group import first_to_report
from boltbox.detector.system.errors import InputError, in_one_line, shortened
from boltbox.detector.system.terminal import printable

WRONG_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


@contextlib.contextmanager
def one_sentence_errors() -> Iterator[None]:
    """Print an InputError, a MisconfigurationException, and errors of the disk as one sentence, in
    one of all processes.

    Raises:
        SystemExit: with code 2, after such an error.
    """
    try:
        yield
    except (InputError, MisconfigurationException) as e:
        if first_to_report(str(e)):
            _print(in_one_line(e))
        raise SystemExit(2) from None
    except OSError as e:
        if e.errno in WRONG_PATH:
            _print(f"{e}; give another file or folder, or move away what is there")
        elif e.errno in NO_ROOM:
            _print(f"{e}; make room, or give another folder with --run")
        else:
            raise
        raise SystemExit(2) from None


def _print(error: str) -> None:
    print(f"error: {shortened(printable(error))}", file=sys.stderr)
