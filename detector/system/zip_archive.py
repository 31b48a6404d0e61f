"""Zip archives, as torch and NumPy write them: whether each byte is as it was written."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import BinaryIO

from boltbox.detector.system.errors import InputError

MAGIC = b"PK\x03\x04"  # a zip archive begins with it; torch tells its formats apart in the same way


def is_zip(file: BinaryIO) -> bool:
    """Whether an open file begins as a zip archive; it is left at its start."""
    file.seek(0)
    found = file.read(len(MAGIC))
    file.seek(0)
    return found == MAGIC


def check_archive(path: str | Path, file: BinaryIO, contents: bool = True) -> None:
    """Compare all records of an archive with their checksums (CRC-32), and the sizes that it claims
    with the file's. It is read in pieces; the file is left anywhere.

    Args:
        path: of the file, for messages.
        contents: whether the records themselves are looked at.

    Raises:
        InputError: "PATH: why".
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            sizes = [entry.file_size for entry in entries]
            is_plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            if not is_plain or sum(sizes) > os.fstat(file.fileno()).st_size:
                raise InputError(
                    f"{path}: refused, because its records are compressed, or claim more than the"
                    " file holds"
                )
            broken = archive.testzip() if contents else None
    except InputError:
        raise
    # What zipfile raises of damaged bytes: sizes and offsets that cannot be, unknown compression.
    except Exception as e:
        raise InputError(f"{path}: cannot be read, perhaps damaged or cut short ({e})") from None
    if broken:
        raise InputError(
            f"{path}: damaged in {broken}, which differs from its checksum: copy or download the"
            " file again"
        )
