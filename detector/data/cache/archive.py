"""A dataset in a zip file: its files are unpacked once, into the cache folder."""

import os
import shutil
import zipfile
from pathlib import Path

from boltbox.detector.data.cache.labels import cache_folder, digest
from boltbox.detector.data.file_list import state_of
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.operating_system import alone
from boltbox.detector.system.rank_zero import progress

SMALL = 2**30  # bytes; up to here files may be packed at any ratio
MOST_RATIO = 100  # unpacked bytes for a byte of the archive; text has 20, images 1


def unpacked(archive: Path) -> Path:
    """The folder with the files of a zip file, or the only folder in it.

    It is unpacked again only if the archive's path, size or time changes. If several processes ask
    for it, one unpacks it.

    Args:
        archive: the zip file.

    Raises:
        InputError: it is no zip file, encrypted, or larger than the disk has room for.
    """
    path = os.path.abspath(archive)
    state = state_of(path)
    folder = cache_folder() / "archives" / f"{archive.stem}-{digest([path, [state]])[:24]}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock")
        lock.touch()
        with alone(lock):
            if not folder.is_dir():
                _unpack(archive, folder)
    except Exception as e:  # damaged files raise exceptions of many kinds
        raise InputError(
            f"{archive}: it cannot be unpacked into {folder} ({in_one_line(e)}). Unpack it and"
            " give the folder"
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
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            size = sum(info.file_size for info in members)
            free = shutil.disk_usage(folder.parent).free
            if size > min(free, max(SMALL, MOST_RATIO * archive.stat().st_size)):
                raise OSError(f"its files take {size} bytes, more than a dataset or the disk has")
            for info in progress(members, f"unpacking {archive.name}", len(members)):
                info.filename = info.filename.replace("\\", "/")  # of a zip file made on Windows
                file.extract(info, beside)  # nothing outside of `beside`, and no links
        shutil.rmtree(beside / "__MACOSX", ignore_errors=True)  # attributes that macOS adds
        os.rename(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
