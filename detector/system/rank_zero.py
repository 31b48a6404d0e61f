"""Telling the user something, once, whatever the number of processes."""

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

# but tab and newline; halves of characters, of file names
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
Item = TypeVar("Item")
PATIENCE = 3  # seconds
KEY_WIDTH = 10  # characters of a fact's name and colon
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


def progress(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The items, with a progress bar on the first process's terminal if they take long."""
    hidden = None if is_first_process() else True  # None: where there is no terminal
    return tqdm(items, what, total, delay=PATIENCE, disable=hidden, leave=False)


def print_fact(key: str, text: object) -> None:
    """Print `key: text`, with the texts of all facts in one column. On a terminal that is narrower,
    the text continues in that column."""
    line = printable(f"{key + ':':<{KEY_WIDTH}} {text}")
    if sys.stdout.isatty():
        line = textwrap.fill(
            line,
            width=shutil.get_terminal_size().columns,
            subsequent_indent=" " * (KEY_WIDTH + 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
    rank_zero_print(line)


def first_to_report(error: str) -> bool:
    """Whether this process is the one to print an error that several may have: the first that asks.
    Before there is a process group, which is before anything is opened, it is the first process of
    each machine."""
    distributed = sys.modules.get("torch.distributed")
    if not distributed or not distributed.is_initialized():
        return os.environ.get("LOCAL_RANK", "0") == "0"
    with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
        store = distributed.distributed_c10d._get_default_store()
        store.set_timeout(timedelta(seconds=5))  # another process may be gone
        return bool(store.add(f"reported/{sha256(error.encode()).hexdigest()}", 1) == 1)
    return True


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


def program() -> str:
    """How this program was started, for lines to be typed next."""
    path = Path(sys.argv[0])
    if path.match("boltbox/__main__.py"):
        return "python -m boltbox"
    return "boltbox" if path.stem == "boltbox" else "python cli.py"
