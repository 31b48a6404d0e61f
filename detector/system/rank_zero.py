"""Messages to the user, printed by one of all processes."""

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from tqdm import tqdm

# all but tab and newline; halves of characters, from file names
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
Item = TypeVar("Item")
BAR_DELAY = 3  # seconds until a progress bar appears
PATIENCE = 5  # seconds that a process that ends by an error waits for the errors of the others
KEY_WIDTH = 10  # characters of a fact's key and colon


def rank_zero_print(text: str) -> None:
    """Print on the first process only, above a progress bar; control characters are escaped.
    Nothing happens if the terminal was closed."""
    group = _process_group()
    if not is_first_process() or (group and group.get_rank() > 0):
        return
    with contextlib.suppress(OSError):
        tqdm.write(printable(text))
        sys.stdout.flush()


def progress(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The items, with a progress bar on the terminal of the first process if they take long."""
    hidden = None if is_first_process() else True  # None: if there is no terminal
    return tqdm(items, what, total, delay=BAR_DELAY, disable=hidden, leave=False)


def print_fact(key: str, text: object) -> None:
    """Print `key: text`, the texts of all facts in one column, within which a terminal's width
    wraps them."""
    line = printable(f"{key + ':':<{KEY_WIDTH}} {text}")
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (KEY_WIDTH + 1),
            break_long_words=False,  # such as paths
            break_on_hyphens=False,  # such as those of options
        )
    rank_zero_print(line)


def first_to_report() -> bool:
    """Whether this process is to print its error: the others' often is the same, or follows from
    it. Before there is a process group, that is the first process of each machine."""
    group = _process_group()
    if group is None:
        return os.environ.get("LOCAL_RANK", "0") == "0"
    is_first = True

    def ask_store() -> None:
        nonlocal is_first
        with contextlib.suppress(RuntimeError):  # the store is gone with the process that held it
            store = group.distributed_c10d._get_default_store()
            # another process may be gone, or have no error
            store.set_timeout(timedelta(seconds=PATIENCE))
            is_first = store.add("reported", 1) == 1
            store.set(f"asked/{group.get_rank()}", "")
            if group.get_rank() == 0:  # it holds the store: it stays until the others have asked
                store.wait([f"asked/{rank}" for rank in range(group.get_world_size())])

    # a daemon, left alone if the store does not answer: no timeout of torch's holds where the
    # network is cut
    asking = Thread(target=ask_store, daemon=True)
    asking.start()
    asking.join(2 * PATIENCE)
    return is_first


def _process_group() -> Any:
    """torch.distributed, if it is imported and initialized."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_initialized() else None


def is_first_process() -> bool:
    """Whether the environment says that this is the first of all processes, or the only one."""
    # torchrun's rank may differ from that of the Slurm task which it runs in
    rank = "RANK" if "RANK" in os.environ else "SLURM_PROCID"
    return all(os.environ.get(name, "0") == "0" for name in (rank, "LOCAL_RANK", "NODE_RANK"))


def printable(text: str) -> str:
    r"""Escape control characters: a file's name must not clear the terminal or rename its window.

    >>> printable("cat\x1b[2J"), printable("one\ntwo")
    ('cat\\x1b[2J', 'one\ntwo')
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def amount(number: int, noun: str) -> str:
    """A number of things, in words.

    >>> amount(1, "image"), amount(2, "image"), amount(0, "box"), amount(3, "class")
    ('1 image', '2 images', '0 boxes', '3 classes')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}es" if noun.endswith(("s", "x")) else f"{number} {noun}s"


def program() -> str:
    """How this program was started, for commands that a message proposes."""
    path = Path(sys.argv[0])
    if path.match("boltbox/__main__.py"):
        return "python -m boltbox"
    return "boltbox" if path.stem == "boltbox" else "python cli.py"


def common_folder(files: Sequence[str]) -> str:
    """The folder that all files are in; empty if there is none, or if paths are relative and
    absolute, or on several drives.

    >>> common_folder(["/data/a/1.png", "/data/b/1.png"]), common_folder(["a.png", "/b.png"])
    ('/data', '')
    """
    try:
        return os.path.commonpath([os.path.dirname(file) for file in files])
    except ValueError:
        return ""


def inside(file: str, folder: str) -> str:
    """The path of a file from a folder; if `folder` is empty, or on another drive, the path as it
    is."""
    try:
        return os.path.relpath(file, folder) if folder else file
    except ValueError:
        return file
