"""Which image and label files there are: one look at each folder, instead of one at each file."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from os.path import splitext
from pathlib import Path
from typing import NamedTuple

from boltbox.detector.data.images import SUFFIXES
from boltbox.detector.system.addresses import FOLDER, State, is_address, list_folder, state_of


class Look(NamedTuple):
    """At a folder.

    Attributes:
        searched: whether its subfolders count too.
        checksum: of the names and states of all that is in it; "" if there is no such folder.
    """

    searched: bool
    checksum: str


OTHER = State(-2, 0)


class FileList:
    """What is in the folders of a dataset, as it was at the first question about each.

    A path is a text as the user, a list or a label file gives it: absolute, or relative to the
    current folder. The folder of a file is what precedes its last separator. Links are followed.
    A folder is listed at the first question about a file in it. A file that is not in the listing
    is asked for itself, because a file system may ignore case or forbid listing. A path may be an
    address, see `Address`; the listings of its server are complete, if there are any.

    Args:
        few: few files of this disk are asked for, each for itself.
    """

    def __init__(self, few: bool = False) -> None:
        self.few = few
        self._folders: dict[str, Mapping[str, State] | None] = {}
        self._files: dict[str, State] = {}
        self._searched: set[str] = set()  # folders whose subfolders were listed too

    def folder(self, path: str | Path) -> Mapping[str, State] | None:
        """The files and folders in a folder, by name; None if there is no such folder."""
        path = os.fspath(path)
        if path not in self._folders:
            self._folders[path] = _listing(path)
        return self._folders[path]

    def state(self, path: str | Path) -> State | None:
        """Of a file or folder; None if there is none."""
        if self.few and not is_address(path):
            return self.state_of_one(path)
        folder, name = os.path.split(path)
        listing = self.folder(folder or os.curdir)
        if listing is None:
            return None
        if name in listing or (listing and is_address(path)):
            return listing.get(name)
        return self.state_of_one(path)

    def state_of_one(self, path: str | Path) -> State | None:
        """As `state`, of a file whose folder is of no interest."""
        path = os.fspath(path)
        state = self._files.get(path) or _state(path)
        if state:
            self._files[path] = state
        return state

    def ask(self, paths: Iterable[str | Path]) -> None:
        """Record the states of files that are read."""
        for path in paths:
            if not (self.is_folder(path) if is_address(path) else os.path.isdir(path)):
                self.state_of_one(path)

    def is_file(self, path: str | Path) -> bool:
        """Whether it is a regular file."""
        state = self.state(path)
        return state is not None and state.size >= 0

    def is_folder(self, path: str | Path) -> bool:
        """Whether it is a folder."""
        if self.few and not is_address(path):
            return os.path.isdir(path)
        listing = self.folder(path)
        return bool(listing) if is_address(path) else listing is not None

    def images(self, folder: str | Path) -> Iterator[str]:
        """The image files in a folder and its subfolders, in any order; names that begin with a dot
        are left out."""
        folder = os.fspath(folder)
        self._searched.add(folder)
        for name, state in (self.folder(folder) or {}).items():
            path = name if folder == os.curdir else os.path.join(folder, name)
            if name.startswith("."):
                continue
            if state == FOLDER:
                yield from self.images(path)
            elif state.size >= 0 and splitext(name)[1].lower() in SUFFIXES:
                yield path

    def record(self) -> tuple[dict[str, Look], dict[str, State]]:
        """What the answers so far depend on: looks at folders, states of single files."""
        looks = {}
        for folder, listing in self._folders.items():
            looks[folder] = _look(listing, folder in self._searched)
        return looks, self._files

    @staticmethod
    def is_same(folders: Mapping[str, Look], files: Mapping[str, State]) -> bool:
        """Whether the files are as they were; arguments: see `record`."""
        for folder, look in folders.items():
            if _look(_listing(folder), look.searched) != look:
                return False
        return all(_state(path) == state for path, state in files.items())


def names_in(folder: str) -> list[str]:
    """What is in a folder, without a look at each; nothing if there is no such folder."""
    if is_address(folder):
        return list(list_folder(folder) or ())
    try:
        return os.listdir(folder or os.curdir)
    except OSError:
        return []


def _look(listing: Mapping[str, State] | None, searched: bool) -> Look:
    if listing is None:
        return Look(searched, "")
    lines = []
    for name, state in sorted(listing.items()):
        if searched or state != FOLDER:
            lines.append(f"{name}\0{state.size}\0{state.time}")
    return Look(searched, sha256(os.fsencode("\0".join(lines))).hexdigest())


def _listing(folder: str) -> dict[str, State] | None:
    if is_address(folder):
        return list_folder(folder)
    listing = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if state := _state(entry):
                    listing[entry.name] = state
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a zero byte
        return None
    except OSError:  # it may not be listed
        return {}
    return listing


def _state(path: str | os.DirEntry) -> State | None:
    """None if there is nothing, as behind a broken link."""
    if isinstance(path, str) and is_address(path):
        return state_of(path)
    try:
        status = os.stat(path) if isinstance(path, str) else path.stat()
    except (OSError, ValueError):
        return None
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        return State(status.st_size, status.st_mtime_ns)
    return FOLDER if kind == stat.S_IFDIR else OTHER
