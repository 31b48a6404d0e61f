"""Reading torch files without running anything in them.

torch's weights-only unpickler reads tensors and plain types; a class that a file may name besides
becomes a stand-in, which only keeps what the file says of it.
"""

from __future__ import annotations

import functools
import io
import mmap
import pickle
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import torch

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import is_file
from boltbox.detector.system.zip_archive import check_archive, is_zip

STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
PLAIN = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    *(f"torch.{name}Storage" for name in STORAGES),
}


class StandIn:
    """Any object of another class: what it was made with, and its state."""

    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


def load_restricted(
    path: str | Path, allowed: list[str], file: BinaryIO | None = None, mmap: bool = False
) -> dict[str, Any]:
    """`torch.load` of tensors (on the CPU), plain types, and stand-ins for the allowed globals. The
    bytes are compared with their checksums first, as torch does not; its format from before 1.6 has
    none, which is reported.

    Args:
        path: the file; with `file` only for messages.
        allowed: full names of the globals that become stand-ins.
        file: the file, already open.
        mmap: the tensors' values are neither compared with their checksums nor read before somebody
            looks at them.

    Raises:
        InputError: no such file, a damaged one, one that torch cannot read, one that is no dict, or
            one that names anything else.
    """
    if file is None:
        if not is_file(path):
            raise InputError(f"{path}: no such weights file")
        with open(path, "rb") as opened:
            return load_restricted(path, allowed, opened, mmap)
    checked = is_zip(file)
    if checked:
        check_archive(path, file, contents=not mmap)
        file.seek(0)
    try:
        if _names_bytearray(file):
            raise InputError(
                f"{path}: refused, because it holds 'bytearray', which weights do not need"
            )
        with torch.serialization.safe_globals([(StandIn, name) for name in allowed]):
            content = torch.load(
                path if mmap else file, map_location="cpu", weights_only=True, mmap=mmap
            )
    except InputError:
        raise
    except pickle.UnpicklingError as e:
        name = re.search(r"GLOBAL ([\w.]+)", str(e))
        if name:
            raise InputError(
                f"{path}: refused, because it holds '{name[1]}', which weights do not need"
            ) from None
        raise InputError(f"{path}: not a checkpoint that torch can read") from None
    except Exception as e:  # whatever torch stumbles over in a damaged file
        raise InputError(
            f"{path}: not a readable checkpoint, perhaps damaged or cut short ({type(e).__name__})"
        ) from e
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a checkpoint (it holds a {type(content).__name__})")
    if not checked:
        _report_unchecked(str(path))
    return content


def _names_bytearray(file: BinaryIO) -> bool:
    """torch's unpickler makes one of any size, of zeros, from a few bytes."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"\nbytearray\n") >= 0


@functools.cache  # a command reads some files twice
def _report_unchecked(path: str) -> None:
    rank_zero_print(
        f"warning: {path} is in torch's format from before 1.6, which has no checksums: damage"
        " cannot be seen"
    )


def is_plain(file: BinaryIO) -> bool:
    """Whether a torch file whose bytes are known to be right holds tensors and plain types, with a
    record for each tensor: then `load_restricted` reads it. False where only `load_restricted`
    itself can tell. It makes no tensor, and takes a tenth of the time."""
    with zipfile.ZipFile(file) as archive:
        records = set(archive.namelist())
        (pickled,) = (name for name in records if name.endswith("/data.pkl"))
        reader = _PlainReader(io.BytesIO(archive.read(pickled)))
        try:
            content = reader.load()
        except pickle.UnpicklingError:
            return False
    folder = pickled.removesuffix(".pkl")
    return isinstance(content, dict) and all(f"{folder}/{key}" in records for key in reader.keys)


class _PlainReader(pickle.Unpickler):
    """Reads the structure around the tensors; refuses all names but PLAIN."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.keys: set[str] = set()  # of the tensors' records

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in PLAIN:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return OrderedDict if name == "OrderedDict" else _no_tensor

    def persistent_load(self, storage: Any) -> None:
        self.keys.add(storage[2])


def _no_tensor(*_: Any) -> None:
    """In a tensor's place."""
