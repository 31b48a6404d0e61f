"""Zip archives, as torch and NumPy write them: whether each byte is as it was written."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from boltbox.detector.system.errors import InputError

MAGIC = b"PK\x03\x04"  # a zip archive begins with it; torch tells its formats apart in the same way
HEADER = 30  # bytes before each record, at least


def is_zip(file: BinaryIO) -> bool:
    """Whether an open file begins as a zip archive; it is left at its start."""
    file.seek(0)
    found = file.read(len(MAGIC))
    file.seek(0)
    return found == MAGIC


def check_archive(path: str | Path, file: BinaryIO, contents: bool = True) -> None:
    """Compare all records of an archive with their checksums (CRC-32). The sizes that it claims are
    compared with the file's first: a record takes its place in the file, and shares it with no
    other. It is read in pieces; the file is left anywhere.

    Args:
        path: of the file, for messages.
        contents: whether the records themselves are looked at.

    Raises:
        InputError: "PATH: why".
    """
    size = os.fstat(file.fileno()).st_size
    if not size:
        raise InputError(f"{path}: empty")
    try:
        with zipfile.ZipFile(file) as archive:
            problem = _claims(archive)
            broken = archive.testzip() if contents and not problem else None
    # What zipfile raises of damaged bytes: sizes and offsets that cannot be, unknown compression.
    except Exception as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise InputError(
            f"{path}: cannot be read, perhaps damaged or cut short ({reason})"
        ) from None
    if broken:
        problem = (
            f"damaged in {broken}, which differs from its checksum: copy or download the file again"
        )
    if problem:
        raise InputError(f"{path}: {problem}")


def _claims(archive: zipfile.ZipFile) -> str:
    """What is wrong with the names and sizes of the records, by the archive's directory; an empty
    string if nothing is."""
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    names = [PurePosixPath(entry.filename.replace("\\", "/")) for entry in entries]
    if any(name.is_absolute() or ".." in name.parts for name in names):
        return "refused, because it names a file outside itself"
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        return "refused, because its records are compressed, as torch never writes them"
    ends = [entry.header_offset + HEADER + entry.compress_size for entry in entries]
    starts = [entry.header_offset for entry in entries] + [archive.start_dir]
    overlap = any(end > start for end, start in zip(ends, starts[1:], strict=True))
    longer = any(entry.file_size != entry.compress_size for entry in entries)
    if overlap or longer or starts[0] or len(set(names)) < len(names):
        return "refused, because it claims to hold more than the file does"
    return ""
