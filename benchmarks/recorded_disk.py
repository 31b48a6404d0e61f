"""What a power cut leaves of a folder."""

import contextlib
import os
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
        is_folder: Or a file.
        flushed: Content of a file as of its last fsync.
        reading: Descriptor of a file that was opened for writing since.
        names: Entries of a folder as the process sees them.
        durable: As of the folder's last fsync.
        changes: Since then, in order.
    """

    is_folder: bool
    flushed: bytes = b""
    reading: int | None = None
    names: dict[str, "Inode"] = field(default_factory=dict)
    durable: dict[str, "Inode"] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def change(self, name: str, inode: "Inode | None", after: Change | None = None) -> Change:
        change = Change(name, inode, after)
        self.changes.append(change)
        self.names.pop(name, None)
        if inode:
            self.names[name] = inode
        return change


class RecordedDisk:
    """Records what this process does to the files below a folder, and rebuilds the folder as it may
    be after a power cut: POSIX promises the content of a file as of its last fsync, and the names in
    a folder as of the folder's last fsync. What came later is on the disk or not, each change for
    itself; only changes of the same name stay in order. What is there at the beginning is on the
    disk.

    It sees the functions of `os` and `open`. A file that a C library has opened by itself (OpenCV,
    SQLite) it sees when one of these is called for it; a memory map it does not see.

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
        self._folder = self._scan(self.root)

    def _scan(self, path: str) -> Inode:
        if not os.path.isdir(path):
            return Inode(False, Path(path).read_bytes())
        names = {name: self._scan(f"{path}/{name}") for name in os.listdir(path)}
        return Inode(True, names=names, durable=dict(names))

    @contextlib.contextmanager
    def recording(self) -> Iterator["RecordedDisk"]:
        records: dict[str, Any] = {
            "open": self._open_descriptor,
            "fsync": self._fsync,
            "mkdir": self._mkdir,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": self._unlink,
            "remove": self._unlink,
            "rmdir": self._unlink,
        }
        with contextlib.ExitStack() as stack:
            for name, record in records.items():
                function = self._recorded(getattr(os, name), record)
                stack.enter_context(mock.patch.object(os, name, function))
            function = self._recorded(open, self._open)
            stack.enter_context(mock.patch("builtins.open", function))
            stack.enter_context(mock.patch("io.open", function))
            yield self

    def _recorded(self, function: Any, record: Any) -> Any:
        """A function of the system that runs within the context `record`, one at a time."""

        def run(*args: Any, **options: Any) -> Any:
            if os.getpid() != self._process:
                return function(*args, **options)
            with self._lock, record(*args, **options):
                return function(*args, **options)

        return run

    def _begin(self, operation: str) -> None:
        self.cut(self.operations, operation)
        self.operations += 1

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[Inode, str] | None:
        """The folder and the name that a path means; None outside of the root."""
        if isinstance(path, int):
            return None
        path = os.fsdecode(path)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        parent, name = os.path.split(os.path.abspath(path))
        parent = os.path.realpath(parent)
        if parent != self.root and not parent.startswith(self.root + os.sep):
            return None
        folder = self._folder
        for part in Path(parent).relative_to(self.root).parts:
            if part not in folder.names:
                return None  # the system will say so
            folder = folder.names[part]
        return folder, name

    def _file(self, path: Any, dir_fd: int | None = None) -> tuple[Inode, str] | None:
        """The place of a path, if something is there."""
        place = self._place(path, dir_fd)
        if place and place[1] not in place[0].names:
            try:
                self._written(place, path, dir_fd)
            except OSError:
                return None
        return place

    def _written(self, place: tuple[Inode, str], path: Any, dir_fd: int | None) -> None:
        """Note that a file has been opened for writing, a new one perhaps."""
        folder, name = place
        known = folder.names.get(name)
        if known and known.reading is not None:
            return
        reading = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
        if not known:
            known = Inode(False)
            folder.change(name, known)
        known.reading = reading

    @contextlib.contextmanager
    def _open(self, path: Any, mode: str = "r", *_: Any, **__: Any) -> Iterator[None]:
        flags = os.O_WRONLY if set(mode) & set("wax+") else os.O_RDONLY
        with self._open_descriptor(path, flags):
            yield

    @contextlib.contextmanager
    def _open_descriptor(
        self, path: Any, flags: int, *_: Any, dir_fd: int | None = None
    ) -> Iterator[None]:
        place = self._place(path, dir_fd) if flags & (os.O_WRONLY | os.O_RDWR) else None
        if place:
            self._begin(f"open {path}")
        yield
        if place:
            self._written(place, path, dir_fd)

    @contextlib.contextmanager
    def _rename(self, source: Any, target: Any) -> Iterator[None]:
        old = self._file(source)
        new = self._place(target)
        if not old or not new:
            assert not old, f"{source} leaves the folder"
            assert not new or not os.path.exists(source), f"{source} comes into the folder"
            yield
            return
        self._begin(f"rename {source} {target}")
        yield
        moved = new[0].change(new[1], old[0].names[old[1]])
        old[0].change(old[1], None, moved)

    @contextlib.contextmanager
    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> Iterator[None]:
        place = self._file(path, dir_fd)
        if place:
            self._begin(f"unlink {path}")
        yield
        if place:
            place[0].change(place[1], None)

    @contextlib.contextmanager
    def _mkdir(self, path: Any, *_: Any, dir_fd: int | None = None) -> Iterator[None]:
        place = self._place(path, dir_fd)
        is_new = place is not None and place[1] not in place[0].names
        if is_new:
            self._begin(f"mkdir {path}")
        yield
        if place and is_new:
            place[0].change(place[1], Inode(True))

    @contextlib.contextmanager
    def _fsync(self, file: Any) -> Iterator[None]:
        descriptor = file if isinstance(file, int) else file.fileno()
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        inode = self._folder if path == self.root else None
        place = self._file(path)
        if place:
            inode = place[0].names[place[1]]
        if inode:
            self._begin(f"fsync {path}")
        yield
        if inode and inode.is_folder:
            inode.durable = dict(inode.names)
            for change in inode.changes:
                change.is_durable = True
            inode.changes = []
        elif inode:
            inode.flushed = _content(descriptor)
            if inode.reading is not None:
                os.close(inode.reading)
            inode.reading = None

    def rebuild(self, target: Path, rng: Random | None = None) -> None:
        """Write the folder as it may be after a power cut now.

        Args:
            target: a new folder.
            rng: decides what is lost; None: all that is not flushed.
        """
        with self._lock:
            _write(self._folder, str(target), rng)


def _content(descriptor: int) -> bytes:
    """Of an open file, which may be open for writing only, or removed."""
    return Path(f"/proc/self/fd/{descriptor}").read_bytes()


def _write(inode: Inode, path: str, rng: Random | None) -> None:
    if not inode.is_folder:
        content = inode.flushed
        if inode.reading is not None and rng:
            live = _content(inode.reading)
            part = live[: rng.randrange(len(live) + 1)]
            content = rng.choice([inode.flushed, b"", bytes(len(live)), part])
        Path(path).write_bytes(content)
        return
    os.mkdir(path)
    names = dict(inode.durable)
    for change in _kept(inode.changes, rng) if rng else ():
        names.pop(change.name, None)
        if change.inode:
            names[change.name] = change.inode
    for name, entry in names.items():
        _write(entry, f"{path}/{name}", rng)


def _kept(changes: list[Change], rng: Random) -> list[Change]:
    """Those that are on the disk: all, none, or of each name any number of the first."""
    by_name: dict[str, list[Change]] = {}
    for change in changes:
        by_name.setdefault(change.name, []).append(change)
    how = rng.choice(("all", "none", "any", "any"))
    for name, of_name in by_name.items():
        count = rng.randrange(len(of_name) + 1) if how == "any" else len(of_name) * (how == "all")
        by_name[name] = of_name[:count]
    while True:
        kept = [change for change in changes if change in by_name[change.name]]
        lost = [c for c in kept if c.after and not c.after.is_durable and c.after not in kept]
        if not lost:
            return kept
        for change in lost:
            of_name = by_name[change.name]
            if change in of_name:
                by_name[change.name] = of_name[: of_name.index(change)]
