"""A dataset in a zip file: its files are unpacked once, into the cache folder."""

import lzma
import os
import shutil
import stat
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from boltbox.detector.data.cache.labels import cache_folder, digest, states
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import alone
from boltbox.detector.system.rank_zero import progress

MOST_FILES = 1_000_000
SMALL = 2**30  # bytes; up to here files may be packed at any ratio
MOST_RATIO = 100  # unpacked bytes for a byte of the archive; text has 20, images 1
SKIPPED = "__MACOSX"  # attributes that macOS adds
UNREADABLE = (  # what a zip file raises that is damaged
    OSError,
    EOFError,
    NotImplementedError,
    UnicodeDecodeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
Members = dict[Path, zipfile.ZipInfo]  # by path below the folder


def unpacked(archive: Path) -> Path:
    """The folder with the files of a zip file, or the only folder in it.

    It is unpacked again only if the archive's path, size or time changes. If several processes ask
    for it, one unpacks it.

    Args:
        archive: the zip file.

    Raises:
        InputError: it is no zip file, cannot be unpacked here, or one of its members is a link, is
            encrypted or would be written elsewhere.
    """
    path = os.path.abspath(archive)
    folder = cache_folder() / "archives" / f"{archive.stem}-{digest([path, states([path])])[:24]}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock")
        lock.touch()
        with alone(lock):
            if not folder.is_dir():
                _unpack(archive, folder)
    except UNREADABLE as e:
        raise InputError(
            f"{archive}: it cannot be unpacked into {folder} ({e}). Unpack it and give the folder"
        ) from None
    inner = list(folder.iterdir())
    while len(inner) == 1 and inner[0].is_dir():
        folder = inner[0]
        inner = list(folder.iterdir())
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack beside `folder`, then move into place."""
    beside = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)  # of a killed process
    try:
        beside.mkdir()
        with zipfile.ZipFile(archive) as file:
            members = _checked(archive, file.infolist(), shutil.disk_usage(beside).free)
            what = f"unpacking {archive.name}"
            for path, info in progress(members.items(), what, len(members)):
                target = beside / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with file.open(info) as packed, open(target, "xb") as written:
                    shutil.copyfileobj(packed, written)
        os.rename(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _checked(archive: Path, infos: list[zipfile.ZipInfo], free: int) -> Members:
    """The files of an archive, whose place, kind, number and size are those of a dataset. free:
    bytes on the disk."""
    members: Members = {}
    for info in infos:
        path = PurePosixPath(info.filename.replace("\\", "/"))
        kind = stat.S_IFMT(info.external_attr >> 16)
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{archive}: {info.filename!r} would be written outside its folder")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise InputError(f"{archive}: {info.filename!r} is a link or a device")
        if info.flag_bits & 1:
            raise InputError(f"{archive}: it is encrypted. Unpack it and give the folder")
        if Path(path) in members:
            raise InputError(f"{archive}: it holds {info.filename!r} twice")
        if not info.is_dir() and SKIPPED not in path.parts:
            members[Path(path)] = info
    size = sum(info.file_size for info in members.values())
    packed = sum(info.compress_size for info in members.values())
    if len(members) > MOST_FILES:
        raise InputError(f"{archive}: it holds {len(members)} files, more than {MOST_FILES}")
    if size > max(SMALL, MOST_RATIO * packed):
        raise InputError(f"{archive}: {packed} bytes become {size}, more than a dataset needs")
    if size > free:
        raise InputError(f"{archive}: its files take {size} bytes, but {free} are free on the disk")
    return members
