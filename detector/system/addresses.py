"""Files that are not on this disk: at an address such as s3://bucket/a.jpg, read by fsspec."""

import errno
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.pool import ThreadPool
from pathlib import Path, PosixPath
from typing import Any

from boltbox.detector.system.errors import InputError, Unreachable, in_one_line, nearest

PROTOCOLS = ("s3", "gs", "az", "https", "http", "hf", "zip")  # none executes what it reads
OPTIONS: dict[str, dict[str, Any]] = {  # of fsspec
    # it reads archives in blocks, and with more concurrency asks for the size before each read
    "s3": {"max_concurrency": 1, "default_block_size": 2**18},
    "http": {"block_size": 2**18},
}
TRIES = 5
WAIT = 0.25  # seconds, of which the first wait takes two, each further one twice as many
PATIENCE = 120  # seconds for a request
AT_ONCE = 32  # requests of a process
PERMANENT = (PermissionError, ImportError, ValueError)


_sizes: dict[str, int] = {}  # of files, in bytes; not all servers say when they have cut one off


class Address(PosixPath):
    """A path with a protocol, whose text keeps both slashes; `parent`, `suffix` and `/` are those
    of any path. An archive is a folder: zip://s3://bucket/set.zip/images/a.jpg."""

    def __str__(self) -> str:
        path = super().__str__()
        protocols = "".join(re.findall(r"^(?:\w+:/)+", path))
        return protocols.replace(":/", "://") + path.removeprefix(protocols)


def is_address(path: str | Path) -> bool:
    """Whether a path is not one of this disk."""
    return "://" in str(path)


def to_path(text: str) -> Path:
    """A path of this disk, or an Address.

    Args:
        text: As users write it.

    Raises:
        InputError: The address has a password or an unknown protocol.
    """
    if not is_address(text):
        return Path(text)
    shown = re.sub("://[^/]*@", "://", text)
    if shown != text:
        raise InputError(
            f"{shown}: an address with a user name, which reports would show. Give it in the"
            " environment (docs/remote.md)"
        )
    for protocol in re.findall(r"(\w+)://", text):
        if protocol not in PROTOCOLS:
            raise InputError(f"{text}: {protocol} is unknown; {nearest(protocol, PROTOCOLS)}")
    return Address(text)


def join(folder: str | Path, text: str) -> str:
    """A path that starts at a folder, if it is no address itself."""
    if is_address(text):
        return str(to_path(text))
    path = os.path.join(folder, text.removeprefix("./"))
    return str(Address(os.path.normpath(path))) if is_address(path) else path


def absolute(text: str | Path) -> Path:
    """A path that does not depend on the current folder. Links stay, unless `..` may follow one."""
    path = to_path(str(text))
    if is_address(path):
        return path
    return path.resolve() if ".." in path.parts else path.absolute()


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """The content of a file.

    Args:
        path: Of this disk, or an address.
        most: Of an address: bytes from the start that are enough.

    Raises:
        OSError: There is no such file, or this disk does not give it.
        Unreachable: The server does not give it.
    """
    if not is_address(path):
        return Path(path).read_bytes()
    part = {} if most is None else {"start": 0, "end": most}
    content = ask(path, "cat_file", **part)
    if content is None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
    return content


def many(question: Callable[[Any], Any], files: Sequence[Any]) -> list[Any]:
    """The answers to a question about files, AT_ONCE at a time. An error or Ctrl-C ends it: the
    threads are daemons, for which nobody waits."""
    with ThreadPool(max(1, min(len(files), AT_ONCE))) as pool:
        return list(pool.imap(question, files, len(files) // (2 * AT_ONCE) + 1))


def ask(address: str | Path, method: str, **options: Any) -> Any:
    """The answer of a file system, which is asked up to TRIES times.

    Args:
        address: What to ask about.
        method: Of the file system.
        options: Of the method.

    Returns:
        None if there is nothing.

    Raises:
        Unreachable: There is no answer.
    """
    address = str(address)
    tries = 0
    while True:
        tries += 1
        try:
            system, place = _locate(address)
            answer = getattr(system, method)(place, timeout=PATIENCE, **options)
            if method == "info":
                _sizes[address] = answer["size"]
            size = _sizes.get(address)
            if size and method == "cat_file" and not options and len(answer) != size:
                raise OSError(f"it has {len(answer)} bytes, and had {size} at the start")
            return answer
        except Exception as e:  # each file system has its own
            # over HTTP, fsspec takes each error for a missing file
            error = e.__cause__ if address.startswith("http") and e.__cause__ else e
            status = getattr(error, "status", 0)
            if status == 404 or isinstance(error, FileNotFoundError):
                return None
            if (
                tries == TRIES
                or 400 <= status < 429
                or isinstance(error, PERMANENT)
                or "Credentials" in type(error).__name__
            ):
                reason = in_one_line(error) or type(error).__name__
                raise Unreachable(
                    f"{address}: {reason}. See docs/remote.md on packages, credentials and servers"
                ) from None
        time.sleep(WAIT * 2**tries)


def _locate(address: str) -> tuple[Any, str]:
    """The file system of an address, and the place in it."""
    protocol, _, place = address.partition("://")
    if protocol == "zip":
        archive, _, place = f"{place}/".partition(".zip/")
        if not is_address(archive):
            archive = f"/{archive}"
        return _file_system(protocol, f"{archive}.zip", os.getpid()), place.rstrip("/")
    system = _file_system(protocol, "", os.getpid())
    return system, system._strip_protocol(address)


@lru_cache
def _file_system(protocol: str, archive: str, process: int) -> Any:
    """process: the connections of another one are of no use here."""
    import fsspec  # slow

    if archive:
        options = OPTIONS.get(archive.partition("://")[0], {})
        return fsspec.filesystem(protocol, fo=archive, target_options=options)
    return fsspec.filesystem(protocol, **OPTIONS.get(protocol, {}))
