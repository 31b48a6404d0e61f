"""What a power cut leaves of a folder."""

import builtins
import contextlib
import io
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

    name: of the entry. inode: what has the name from then on; None: nothing. after: of the old name
    of a file that was renamed, the change of the new name; a file does not vanish by a rename.
    """

    name: str
    inode: "Inode | None"
    after: "Change | None" = None
    is_durable: bool = False


@dataclass(eq=False)
class Inode:
    """A file or a folder.

    flushed: content of a file as of its last fsync. changed: it was opened for writing since.
    last: content of a changed file that lost a name. names: entries of a folder as the process sees
    them. durable: as of the folder's last fsync. changes: since then, in order.
    """

    is_folder: bool
    flushed: bytes = b""
    changed: bool = False
    last: bytes = b""
    names: dict[str, "Inode"] = field(default_factory=dict)
    durable: dict[str, "Inode"] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


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
        self._lock, self._process = threading.RLock(), os.getpid()
        self._folder = self._scan(self.root)

    def _scan(self, path: str) -> Inode:
        if not os.path.isdir(path):
            return Inode(False, Path(path).read_bytes())
        names = {name: self._scan(f"{path}/{name}") for name in os.listdir(path)}
        return Inode(True, names=names, durable=dict(names))

    @contextlib.contextmanager
    def recording(self) -> Iterator["RecordedDisk"]:
        with contextlib.ExitStack() as stack:
            replaced = {
                **dict.fromkeys(("rename", "replace"), self._rename),
                **dict.fromkeys(("unlink", "remove", "rmdir"), self._unlink),
                "fsync": self._fsync,
                "mkdir": self._mkdir,
                "open": self._open_descriptor,
            }
            for name, function in replaced.items():
                whole = getattr(os, name)
                stack.enter_context(mock.patch.object(os, name, self._wrapped(whole, function)))
            opened = self._wrapped(builtins.open, self._open)
            stack.enter_context(mock.patch.object(builtins, "open", opened))
            stack.enter_context(mock.patch.object(io, "open", opened))
            yield self

    def _wrapped(self, whole: Any, function: Any) -> Any:
        """whole: the system's function. function: ours, which calls it."""

        def run(*args: Any, **options: Any) -> Any:
            if os.getpid() != self._process:
                return whole(*args, **options)
            return function(whole, *args, **options)

        return run

    @contextlib.contextmanager
    def _operation(self, text: str) -> Iterator[None]:
        """One at a time, as a whole."""
        with self._lock:
            self.cut(self.operations, text)
            self.operations += 1
            yield

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
                os.stat(path, dir_fd=dir_fd)
            except OSError:
                return None
            self._change(*place, Inode(False, changed=True))
        return place

    def _change(
        self, folder: Inode, name: str, inode: Inode | None, after: Change | None = None
    ) -> Change:
        change = Change(name, inode, after)
        folder.changes.append(change)
        if inode is None:
            del folder.names[name]
        else:
            folder.names[name] = inode
        return change

    def _keep_content(self, path: Any, place: tuple[Inode, str], dir_fd: int | None = None) -> None:
        """Of a file that loses this name."""
        inode = place[0].names.get(place[1])
        if inode and inode.changed:
            inode.last = _content(os.open(path, os.O_RDONLY, dir_fd=dir_fd))

    def _rename(self, whole: Any, source: Any, target: Any, **options: Any) -> None:
        old = self._file(source)
        new = self._place(target)
        if not old or not new:
            assert not old, f"{source} leaves the folder"
            assert not new or not os.path.exists(source), f"{source} comes into the folder"
            whole(source, target, **options)
            return
        with self._operation(f"rename {source} {target}"):
            self._keep_content(target, new)
            whole(source, target, **options)
            moved = self._change(*new, old[0].names[old[1]])
            self._change(*old, None, moved)

    def _unlink(self, whole: Any, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._file(path, dir_fd)
        if not place:
            whole(path, dir_fd=dir_fd)
            return
        with self._operation(f"unlink {path}"):
            self._keep_content(path, place, dir_fd)
            whole(path, dir_fd=dir_fd)
            self._change(*place, None)

    def _mkdir(self, whole: Any, path: Any, *args: Any, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        if not place or place[1] in place[0].names:
            whole(path, *args, dir_fd=dir_fd)
            return
        with self._operation(f"mkdir {path}"):
            whole(path, *args, dir_fd=dir_fd)
            self._change(*place, Inode(True))

    def _fsync(self, whole: Any, file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        with self._lock:
            place = self._file(path)
            if not place and path != self.root:
                whole(descriptor)
                return
            inode = place[0].names[place[1]] if place else self._folder
            with self._operation(f"fsync {path}"):
                whole(descriptor)
                if inode.is_folder:
                    inode.durable = dict(inode.names)
                    for change in inode.changes:
                        change.is_durable = True
                    inode.changes = []
                else:
                    inode.flushed = _content(descriptor, close=False)
                    inode.changed = False

    def _open(self, whole: Any, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        place = self._place(file) if set(mode) & set("wax+") else None
        if not place:
            return whole(file, mode, *args, **options)
        with self._opening(file, place):
            return whole(file, mode, *args, **options)

    def _open_descriptor(
        self, whole: Any, path: Any, flags: int, *args: Any, dir_fd: int | None = None
    ) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        place = self._place(path, dir_fd) if writes else None
        if not place:
            return whole(path, flags, *args, dir_fd=dir_fd)
        with self._opening(path, place):
            return whole(path, flags, *args, dir_fd=dir_fd)

    @contextlib.contextmanager
    def _opening(self, path: Any, place: tuple[Inode, str]) -> Iterator[None]:
        """For writing."""
        folder, name = place
        with self._operation(f"open {path}"):
            yield
            if name not in folder.names:
                self._change(folder, name, Inode(False))
            folder.names[name].changed = True

    def rebuild(self, target: Path, rng: Random | None = None) -> None:
        """Write the folder as it may be after a power cut now.

        Args:
            target: a new folder.
            rng: decides what is lost; None: all that is not flushed.
        """
        with self._lock:
            contents = self._live(self._folder, self.root)
            _write(self._folder, str(target), contents, rng)

    def _live(self, folder: Inode, path: str) -> dict[Inode, bytes]:
        """The content of the files that have changed, as the process sees it."""
        found: dict[Inode, bytes] = {}
        for name, inode in folder.names.items():
            if inode.is_folder:
                found |= self._live(inode, f"{path}/{name}")
            elif inode.changed:
                found[inode] = _content(os.open(f"{path}/{name}", os.O_RDONLY))
        return found


def _content(descriptor: int, close: bool = True) -> bytes:
    """Of an open file, which may be open for writing only."""
    reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    if close:
        os.close(descriptor)
    with os.fdopen(reading, "rb") as file:
        return file.read()


def _write(inode: Inode, path: str, contents: dict[Inode, bytes], rng: Random | None) -> None:
    if not inode.is_folder:
        content = inode.flushed
        if inode.changed and rng:
            live = contents.get(inode, inode.last)
            zeros = bytes(len(live))
            part = live[: rng.randrange(len(live) + 1)]
            content = rng.choice([inode.flushed, b"", zeros, part])
        Path(path).write_bytes(content)
        return
    os.mkdir(path)
    names = dict(inode.durable)
    for change in _kept(inode.changes, rng) if rng else ():
        if change.inode is None:
            names.pop(change.name, None)
        else:
            names[change.name] = change.inode
    for name, entry in names.items():
        _write(entry, f"{path}/{name}", contents, rng)


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
