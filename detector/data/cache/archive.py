"""Datasets in archives, unpacked once: a user's zip file into the cache folder, those of a public
dataset, which are fetched, into a folder beside them."""

import hashlib
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml

from boltbox.detector.data.cache.labels import cache_folder, digest
from boltbox.detector.data.file_list import state_of
from boltbox.detector.data.public_datasets import PUBLIC
from boltbox.detector.system.atomic_file import make_folder, remove, sync_files, sync_folder
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.operating_system import alone
from boltbox.detector.system.rank_zero import progress, rank_zero_print

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
        make_folder(folder.parent)
        with alone(folder.parent):
            if not folder.is_dir():
                _unpack([archive], folder)
    except Exception as e:  # damaged files raise exceptions of many kinds
        raise InputError(
            f"{archive}: it cannot be unpacked into {folder} ({in_one_line(e)}). Unpack it and"
            " give the folder"
        ) from None
    while True:
        inner = list(folder.glob("[!.]*"))  # macOS adds .DS_Store
        if len(inner) != 1 or not inner[0].is_dir():
            return folder
        folder = inner[0]


def fetched(name: str, folder: Path) -> Path:
    """The folder of a public dataset, with a data.yaml. It is fetched if there is none; if several
    processes ask for it, one fetches it.

    Args:
        name: A key of PUBLIC.
        folder: Of the datasets and the archives, which are fetched if they are not there.

    Raises:
        InputError: An archive cannot be fetched, is not what was published, or the disk is full.
    """
    root = folder / name
    archives = PUBLIC[name]["archives"]
    try:
        make_folder(folder)
        with alone(folder):
            if not root.is_dir():
                files = [_fetch(address, folder, archives[address]) for address in archives]
                _unpack(files, root, yaml.safe_dump(PUBLIC[name]))
    except Exception as e:  # of the network, the disk, and damaged files
        raise InputError(
            f"data.dataset {name}: it cannot be fetched ({in_one_line(e)}). Download"
            f" {' and '.join(archives)} into {folder}, and repeat the command"
        ) from None
    return root


def _fetch(address: str, folder: Path, sha256: str) -> Path:
    """An archive, checked."""
    file = folder / Path(address).name
    for part in folder.glob(f"{file.name}.*.partial"):  # of a killed process
        remove(part)
    if not file.is_file():
        rank_zero_print(f"fetching {address}")
        torch.hub.download_url_to_file(address, str(file), sha256, sys.stderr.isatty())
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        raise OSError(f"{file} has the SHA-256 {found}, not {sha256}; move it away")
    return file


def _unpack(archives: Iterable[Path], folder: Path, description: str = "") -> None:
    """Unpack beside `folder`, then move into place.

    Args:
        archives: zip and tar files.
        folder: where their files come to.
        description: text of a data.yaml.
    """
    beside = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)  # of a killed process
    try:
        for archive in archives:
            _extract(archive, beside)
        if description:
            (beside / "data.yaml").write_text(description)
        sync_files(list(filter(Path.is_file, beside.rglob("*"))))
        os.rename(beside, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    """Unpack an archive: nothing outside of `folder`, and no links that lead out of it."""
    if archive.suffix == ".tar":
        # Python 3.11 has filters from 3.11.4 on; these archives are known by their SHA-256
        options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(archive, folder, **options)
        return
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        size = sum(info.file_size for info in members)
        free = shutil.disk_usage(folder.parent).free
        if size > min(free, max(SMALL, MOST_RATIO * archive.stat().st_size)):
            raise OSError(f"its files take {size} bytes, more than a dataset or the disk has")
        for info in progress(members, f"unpacking {archive.name}", len(members)):
            info.filename = info.filename.replace("\\", "/")  # of a zip file made on Windows
            file.extract(info, folder)  # nothing outside of it, and no links
    shutil.rmtree(folder / "__MACOSX", ignore_errors=True)  # attributes that macOS adds
