"""Which image and label files there are: one look at each folder, instead of one at each file."""

import os
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from glob import glob
from hashlib import sha256
from os.path import isdir, isfile, islink, realpath, splitext
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from boltbox.detector.data.images import SUFFIXES
from boltbox.detector.system.addresses import ask, is_address, many

VERSIONS = ("ETag", "etag", "md5Hash", "CRC", "LastModified", "Last-Modified")  # by file system


class State(NamedTuple):
    """Of a file or folder.

    Attributes:
        size: bytes; -1 for a folder, 0 if a server does not say.
        time: of the last change, in nanoseconds; of an address a checksum of its ETag or time; 0
            for a folder.
    """

    size: int
    time: int


FOLDER = State(-1, 0)
FILE = State(0, 0)  # whose state is not known
Look = tuple[bool, str]  # of a folder: whether its subfolders count too; its `checksum`


class FileList:
    """Which files and folders a dataset has, as they were at the first question about each.

    The folder of a file is what precedes its last separator. Links are followed. A folder is listed
    at the first question about a file in it. A file that is not in the listing is asked for itself,
    because a file system may ignore case or forbid listing. A path may be an address, see
    `Address`; the listings of its server are complete, if there are any, but for quoted names.

    Args:
        with_states: list the states of files too, for `record`.
    """

    def __init__(self, with_states: bool = False) -> None:
        self._with_states = with_states
        self._folders: dict[str, Mapping[str, State] | None] = {}
        self._files: dict[str, State] = {}
        self._searched: set[str] = set()  # folders whose subfolders were listed too

    def folder(self, path: str | Path) -> Mapping[str, State] | None:
        """The files and folders in a folder, see `list_folder`."""
        path = os.fspath(path)
        if path not in self._folders:
            self._folders[path] = list_folder(path, self._with_states)
        return self._folders[path]

    def state(self, path: str | Path) -> State | None:
        """Of a single file or folder; None if there is none."""
        path = os.fspath(path)
        state = self._files.get(path) or state_of(path)
        if state and state != FOLDER:
            self._files[path] = state
        return state

    def is_file(self, path: str | Path) -> bool:
        """Whether it is a regular file."""
        folder, name = os.path.split(path)
        listing = self.folder(folder)
        if listing is None:
            return False
        # in a listing of https, names that are not plain are quoted, in one of several ways;
        # half of a surrogate pair, as JSON may have it, cannot be
        quoted = quote(name, errors="ignore") if folder.startswith("http") else name
        is_known = name in listing or (listing and is_address(path) and quoted == name)
        state = listing.get(name) if is_known else self.state(path)
        return state is not None and state != FOLDER

    def is_folder(self, path: str | Path) -> bool:
        """Whether it is a folder."""
        listing = self.folder(path)
        return bool(listing) if is_address(path) else listing is not None

    def images(
        self,
        folder: str | Path,
        suffixes: Collection[str] = SUFFIXES,
        above: tuple[str, ...] = (),
    ) -> Iterator[str]:
        """The image files in a folder and its subfolders, in any order; names that begin with a dot
        are left out, and links to a folder that contains them (those are in `above`)."""
        folder = os.fspath(folder)
        above += (realpath(folder),)
        self._searched.add(folder)
        for name, state in (self.folder(folder) or {}).items():
            path = os.path.join(folder, name)
            if name.startswith("."):
                continue
            if state == FOLDER:
                if not _is_loop(path, above):
                    yield from self.images(path, suffixes, above)
            elif splitext(name)[1].lower() in suffixes:
                yield path

    def record(self) -> tuple[dict[str, Look], dict[str, tuple[int, ...]]]:
        """What the answers so far depend on, in plain types: looks at folders, states of single
        files. What is read after an answer may be newer, and a later start notices that."""
        looks = {}
        for folder, listing in self._folders.items():
            searched = folder in self._searched
            looks[folder] = (searched, checksum(listing, searched))
        return looks, {path: tuple(state) for path, state in self._files.items()}

    @staticmethod
    def is_same(folders: Mapping[str, Look], files: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the files are as they were; arguments: see `record`."""
        for folder, (searched, expected) in folders.items():
            if checksum(list_folder(folder, with_states=True), searched) != expected:
                return False
        return all(state_of(path) == state for path, state in files.items())


def find_images(source: str | Path, suffixes: Collection[str] = SUFFIXES) -> list[Path]:
    """Image files, sorted.

    Args:
        source: a file, a folder (with its subfolders) or a glob pattern.
        suffixes: of image files, in lower case. A file that `source` names may have any.
    """
    if isfile(source):
        return [Path(source)]
    if isdir(source):
        return list(map(Path, sorted(FileList().images(source, suffixes))))
    files = map(Path, sorted(glob(str(source), recursive=True)))
    return [file for file in files if file.suffix.lower() in suffixes and file.is_file()]


def _is_loop(path: str, above: Iterable[str]) -> bool:
    """Whether it is a link to one of these folders, or to one that holds one of them."""
    if not islink(path):
        return False
    target = realpath(path)
    return any(Path(folder).is_relative_to(target) for folder in above)


def checksum(listing: Mapping[str, State] | None, searched: bool) -> str:
    """Of the names and states of all that is in a folder.

    Args:
        listing: of `list_folder`, with states.
        searched: whether its subfolders count too.

    Returns:
        "" if there is no such folder.
    """
    if listing is None:
        return ""
    lines = []
    for name, state in listing.items():
        if searched or state != FOLDER:
            lines.append(f"{name}\0{state.size}\0{state.time}")
    return sha256(os.fsencode("\0".join(sorted(lines)))).hexdigest()


def state_of(path: str | Path) -> State | None:
    """The state of a file or folder; None if there is none, as behind a broken link.

    Raises:
        Unreachable: its server does not say.
    """
    if is_address(path):
        entry = ask(path, "info")
        return _state_at(entry) if entry else None
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None
    return FOLDER if stat.S_ISDIR(status.st_mode) else _file_state(status)


def list_folder(folder: str, with_states: bool = False) -> Mapping[str, State] | None:
    """The files and folders in a folder, by name.

    Args:
        folder: its path or address; "": the current folder.
        with_states: ask for the state of each file, which takes long; else it may be FILE.

    Returns:
        Nothing if it may not be listed; None if there is no such folder. Devices, pipes and broken
        links are left out.

    Raises:
        Unreachable: its server does not say.
    """
    if is_address(folder):
        return _list_address(folder, with_states)
    listing = {}
    try:
        with os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                try:
                    if entry.is_dir():
                        listing[entry.name] = FOLDER
                    elif entry.is_file():
                        listing[entry.name] = _file_state(entry.stat()) if with_states else FILE
                except OSError:  # a link to itself
                    continue
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: as above
        return None
    except OSError:
        return {}
    return listing


def _file_state(status: os.stat_result) -> State:
    return State(status.st_size, status.st_mtime_ns)


def _list_address(folder: str, with_states: bool) -> Mapping[str, State] | None:
    """As `list_folder`. A server that lists no folders gives nothing."""
    is_http = folder.startswith("http")
    entries = ask(folder, "ls", detail=True)
    if entries is None:
        return {} if is_http else None
    listing = {}
    for entry in entries:
        listing[os.path.basename(entry["name"].rstrip("/"))] = _state_at(entry)
    if len(entries) == 1 and folder.endswith(entries[0]["name"].rstrip("/")):
        return None  # a file, which fsspec lists as itself
    if with_states and is_http:  # which lists names only
        files = [name for name, state in listing.items() if state != FOLDER]
        states = many(state_of, [f"{folder}/{name}" for name in files])
        for name, state in zip(files, states, strict=True):
            listing[name] = state or FILE
    return listing


def _state_at(entry: Mapping[str, Any]) -> State:
    """Of an entry of fsspec."""
    if entry["type"] == "directory":
        return FOLDER
    version = next((entry[key] for key in VERSIONS if key in entry), None)
    return State(entry["size"] or 0, zlib.crc32(str(version).encode()))
