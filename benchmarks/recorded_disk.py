"""What a power cut leaves of a folder."""

import contextlib
import os
import pkgutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock


@dataclass(eq=False)
class Change:
    """Of a name in a folder since the folder was last flushed.

    Attributes:
        name: Of the entry.
        inode: What has the name from then on; None: nothing.
        after: Of the old name of a file that was renamed, the change of the new name; a file does
            not vanish by a rename.
        is_durable: Whether the folder was flushed since.
    """

    name: str
    inode: "Inode | None"
    after: "Change | None" = None
    is_durable: bool = False


@dataclass(eq=False)
class Inode:
    """A file or a folder.

    Attributes:
        file: Open for reading, so that the content outlives the name; None: this is a folder.
        flushed: Content of a file as of its last fsync.
        names: Entries of a folder at the last look.
        durable: As of the folder's last fsync.
        changes: Since then, in order.
    """

    file: Any
    flushed: bytes = b""
    names: dict[str, "Inode"] = field(default_factory=dict)
    durable: dict[str, "Inode"] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def content(self) -> bytes:
        """Of a file, now."""
        self.file.seek(0)
        content: bytes = self.file.read()
        return content

    def flush(self) -> None:
        """What is there now is on the disk."""
        if self.file:
            self.flushed = self.content()
        self.durable = self.names
        for change in self.changes:
            change.is_durable = True
        self.changes = []


class RecordedDisk:
    """Records what becomes of the files below a folder, and rebuilds the folder as it may be after
    a power cut: POSIX promises the content of a file as of its last fsync, and the names in a
    folder as of the folder's last fsync. What came later is on the disk or not, each change for
    itself; only changes of the same name stay in order. What is there at the beginning is on the
    disk.

    It looks at the folder before each operation of this process: functions of `os`, and `open`. So
    it sees what a C library does by itself (OpenCV, SQLite) at the next operation.

    Args:
        root: the folder; it exists.
        cut: is called before each operation with its number, counted from 0, and a description.

    Attributes:
        operations: how many there were.
    """

    def __init__(self, root: Path, cut: Callable[[int, str], object] = lambda *_: None) -> None:
        self.root = os.path.realpath(root)
        self.cut = cut
        self.operations = 0
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._inodes: dict[int, Inode] = {}  # by number, at the last look
        self._look()
        for inode in self._inodes.values():
            inode.flush()

    def _look(self) -> None:
        """Note which names have changed since the last look."""
        known = self._inodes
        self._inodes = {}

        def inode_of(path: str) -> Inode:
            number = os.stat(path).st_ino
            if number not in known:
                file = None if os.path.isdir(path) else open(path, "rb", buffering=0)  # noqa: SIM115
                known[number] = Inode(file)
            self._inodes[number] = known[number]
            return known[number]

        looked = []
        arrivals = {}
        for path, folders, files in os.walk(self.root):
            folder = inode_of(path)
            before = folder.names
            folder.names = {name: inode_of(f"{path}/{name}") for name in folders + files}
            looked.append((folder, before))
            for name, inode in folder.names.items():
                if before.get(name) is not inode:
                    arrivals[inode] = Change(name, inode)
                    folder.changes.append(arrivals[inode])
        for folder, before in looked:
            for name in before.keys() - folder.names.keys():
                folder.changes.append(Change(name, None, arrivals.get(before[name])))

    @contextlib.contextmanager
    def recording(self) -> Iterator["RecordedDisk"]:
        operations: dict[str, Callable[..., str]] = {
            "os.open": self._open,
            "builtins.open": self._open,
            "io.open": self._open,
            "os.fsync": self._fsync,
            "os.mkdir": self._mkdir,
            "os.rename": self._rename,
            "os.replace": self._rename,
            "os.unlink": self._remove,
            "os.remove": self._remove,
            "os.rmdir": self._remove,
        }
        with contextlib.ExitStack() as stack:
            for name, describe in operations.items():
                function = self._recorded(pkgutil.resolve_name(name), describe)
                stack.enter_context(mock.patch(name, function))
            yield self

    def _recorded(self, function: Any, describe: Callable[..., str]) -> Any:
        """A function of the system, one call at a time.

        Args:
            function: The one.
            describe: Takes its arguments and says what it does to the folder; an empty string:
                nothing.
        """

        def run(*args: Any, **options: Any) -> Any:
            if os.getpid() != self._process:
                return function(*args, **options)
            with self._lock:
                operation = describe(*args, **options)
                if not operation:
                    return function(*args, **options)
                self._look()
                self.cut(self.operations, operation)
                self.operations += 1
                result = function(*args, **options)
                if describe == self._fsync:
                    self._inodes[os.stat(args[0]).st_ino].flush()
                return result

        return run

    def _place(self, path: Any, dir_fd: int | None = None) -> str:
        """The path without links, if it lies within the folder, whether something is there or not;
        else an empty string."""
        if isinstance(path, int):
            return ""
        base = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        parent, name = os.path.split(os.path.abspath(os.path.join(base, os.fsdecode(path))))
        place = Path(os.path.realpath(parent), name)
        return str(place) if place.is_relative_to(self.root) else ""

    def _open(self, path: Any, mode: str | int = "r", *_: Any, **__: Any) -> str:
        writes = mode & os.O_ACCMODE if isinstance(mode, int) else set(mode) & set("wax+")
        return f"open {path}" if writes and self._place(path) else ""

    def _mkdir(self, path: Any, *_: Any, **__: Any) -> str:
        place = self._place(path)
        return f"mkdir {path}" if place and not os.path.exists(place) else ""

    def _rename(self, source: Any, target: Any) -> str:
        return f"rename {source} {target}" if self._place(target) else ""

    def _remove(self, path: Any, dir_fd: int | None = None) -> str:
        place = self._place(path, dir_fd)
        return f"unlink {path}" if os.path.exists(place) else ""

    def _fsync(self, descriptor: int) -> str:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return f"fsync {path}" if os.path.exists(self._place(path)) else ""

    def rebuild(self, target: Path, rng: Random | None = None) -> None:
        """Write the folder as it may be after a power cut now.

        Args:
            target: a new folder.
            rng: decides what is lost; None: all that is not flushed.
        """
        with self._lock:
            self._look()
            _write(self._inodes[os.stat(self.root).st_ino], target, rng)


def _write(inode: Inode, path: Path, rng: Random | None) -> None:
    if inode.file:
        content = inode.flushed
        live = inode.content()
        if live != content and rng:
            part = live[: rng.randrange(len(live) + 1)]
            content = rng.choice([content, b"", bytes(len(live)), part])
        path.write_bytes(content)
        return
    path.mkdir()
    names = dict(inode.durable)
    for change in _kept(inode.changes, rng) if rng else ():
        names.pop(change.name, None)
        if change.inode:
            names[change.name] = change.inode
    for name, entry in names.items():
        _write(entry, path / name, rng)


def _kept(changes: list[Change], rng: Random) -> list[Change]:
    """Those that are on the disk: all, none, or of each name any number of the first."""
    loss = rng.choice((0.0, 0.5, 0.5, 1.0))
    kept: list[Change] = []
    lost = set()  # names
    for change in changes:
        first = change.after  # before `change` in the list, if it is of the same folder
        if rng.random() < loss or not (first is None or first.is_durable or first in kept):
            lost.add(change.name)
        if change.name not in lost:
            kept.append(change)
    return kept
