"""The checksum that an exported file holds: SHA-256 of all its bytes, in which the 64 digits of
the checksum itself are zeros."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

EMPTY = "sha256:" + "0" * 64  # until `write_checksum` computes it
_CHECKSUM = re.compile(rb"sha256:[0-9a-f]{64}")


def write_checksum(files: Sequence[Path]) -> None:
    """Fill in the checksum of an export.

    Args:
        files: All files of the export; the first one holds EMPTY, or an earlier checksum.
    """
    content, held, right = _read(files)
    files[0].write_bytes(content.replace(held, right))


def compare_checksum(files: Sequence[Path]) -> bytes:
    """Compare an export with the checksum that it holds.

    Args:
        files: All files of the export, the one with the checksum first.

    Returns:
        The content of the first file.

    Raises:
        ValueError: The files differ from their checksum, or hold none.
    """
    content, held, right = _read(files)
    if held != right:
        raise ValueError("it differs from its checksum")
    return content


def _read(files: Sequence[Path]) -> tuple[bytes, bytes, bytes]:
    """Content of the first file, the checksum that it holds, the checksum of all files."""
    content = files[0].read_bytes()
    found = _CHECKSUM.findall(content)
    if len(found) != 1:
        raise ValueError("it holds no checksum")
    sha = hashlib.sha256(content.replace(found[0], EMPTY.encode()))
    for file in files[1:]:
        sha.update(file.read_bytes())
    return content, found[0], f"sha256:{sha.hexdigest()}".encode()
