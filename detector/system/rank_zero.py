"""Telling the user something, once, whatever the number of processes."""

import contextlib
import os
import re
import sys

from tqdm import tqdm

# but tab and newline; halves of characters, of file names
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "GROUP_RANK", "NODE_RANK", "SLURM_NODEID")


def rank_zero_print(text: str) -> None:
    """Print on the first process alone, above a progress bar; control characters are shown, see
    `printable`. Nothing happens if the terminal was closed."""
    distributed = sys.modules.get("torch.distributed")
    if not is_first_process() or (
        distributed and distributed.is_initialized() and distributed.get_rank()
    ):
        return
    with contextlib.suppress(OSError):
        tqdm.write(printable(text))
        sys.stdout.flush()


def is_first_process() -> bool:
    """Whether this is the first of all processes, or the only one, as the environment says: there
    may be no Trainer yet."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def printable(text: str) -> str:
    r"""With control characters as they would be typed: names out of files must not clear a
    terminal, or rename its window.

    >>> printable("cat\x1b[2J"), printable("one\ntwo")
    ('cat\\x1b[2J', 'one\ntwo')
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
