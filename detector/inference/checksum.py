"""The checksum that an exported file holds: SHA-256 of all its bytes, in which the 64 digits of
the checksum itself are zeros."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

PREFIX, DIGITS = "sha256:", 64
EMPTY = PREFIX + "0" * DIGITS  # until `write_checksum` knows it
_CHECKSUM = re.compile(rb"sha256:[0-9a-f]{64}")


def write_checksum(files: Sequence[Path]) -> None:
    """Fill in the checksum of an export.

    Args:
        files: All files of the export; the first one holds EMPTY, or an earlier checksum.
    """
    content = files[0].read_bytes()
    place = _place(content)
    checksum = _checksum(content, place, files[1:])
    files[0].write_bytes(content[: place.start] + checksum + content[place.stop :])


def compare_checksum(files: Sequence[Path]) -> bytes:
    """Compare an export with the checksum that it holds.

    Args:
        files: See `write_checksum`.

    Returns:
        The content of the first file.

    Raises:
        ValueError: The files differ from their checksum, or hold none.
    """
    content = files[0].read_bytes()
    place = _place(content)
    if content[place] != _checksum(content, place, files[1:]):
        raise ValueError("it differs from its checksum")
    return content


def _place(content: bytes) -> slice:
    found = [*_CHECKSUM.finditer(content)]
    if len(found) != 1:
        raise ValueError("it holds no checksum")
    return slice(*found[0].span())


def _checksum(content: bytes, place: slice, others: Sequence[Path]) -> bytes:
    sha = hashlib.sha256(content[: place.start])
    sha.update(EMPTY.encode())
    sha.update(content[place.stop :])
    for file in others:
        sha.update(file.read_bytes())
    return (PREFIX + sha.hexdigest()).encode()
