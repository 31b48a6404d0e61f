"""Reading torch files without running anything in them.

torch's weights-only unpickler reads tensors and plain types. A further class that a file may name
becomes a `StandIn`, which only keeps what the file says of it.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os.path import isfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from boltbox.detector.system.errors import InputError, need

ZIP = b"PK\x03\x04"  # a zip archive begins with it; torch tells its formats apart in the same way


class StandIn:
    """An object of a class that is not imported: its arguments and its state."""

    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


@contextmanager
def as_input_error(path: str | Path, what: str) -> Iterator[None]:
    """One sentence for whatever fails while the content of a file is read or used.

    Args:
        path: The file.
        what: What it should be, like "a checkpoint of a detector".

    Raises:
        InputError: "PATH: ..." instead of any other exception; an InputError only gets the path.
    """
    try:
        yield
    except InputError as e:
        if str(path) in str(e):
            raise
        raise InputError(f"{path}: {e}") from None
    except Exception as e:
        reason = type(e).__name__
        name = refused_class(e)
        if name:
            reason = f"it names '{name}', which is refused"
        raise InputError(
            f"{path}: damaged, or not {what} ({reason}): copy or download the file again, or give"
            " another one"
        ) from e


def refused_class(error: BaseException | None) -> str:
    """The class that torch's unpickler refuses to make; "" for any other error."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return found[1] if found else ""


def load_torch_file(
    path: str | Path, allowed: Sequence[str] = (), mmap: bool = False, compare: bool = True
) -> dict[str, Any]:
    """`torch.load` of tensors (on the CPU), plain types, and stand-ins for the allowed classes; or
    the tensors of a file of safetensors. The checksums are compared first; safetensors and torch's
    format from before 1.6 have none.

    Args:
        path: The file.
        allowed: Full names of the classes that become stand-ins.
        mmap: Read the values of the tensors when they are used.
        compare: Compare the checksums.

    Raises:
        InputError: no such file, a damaged one, one that torch cannot read, one that is no dict, or
            one that names anything else.
    """
    if not isfile(path):
        raise InputError(f"{path}: no such weights file")
    with as_input_error(path, "a file of weights"):
        if Path(path).suffix == ".safetensors":
            return need("safetensors.torch", str(path)).load_file(path)
        with open(path, "rb") as file:
            if file.read(len(ZIP)) == ZIP:
                _check_archive(file, compare)
        with torch.serialization.safe_globals([(StandIn, name) for name in allowed]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        if not isinstance(content, dict):
            raise TypeError(type(content).__name__)
    return content


def _check_archive(file: BinaryIO, compare: bool) -> None:
    """Compare the sizes that a zip archive claims with the file's and, if `compare`, all its
    records with their checksums (CRC-32), in pieces."""
    with zipfile.ZipFile(file) as archive:
        claimed = 0
        for entry in archive.infolist():
            claimed += entry.file_size
            if entry.compress_type != zipfile.ZIP_STORED:
                raise InputError("refused, because its records are compressed")
        if claimed > os.fstat(file.fileno()).st_size:
            raise InputError("refused, because its records claim more than the file holds")
        damaged = archive.testzip() if compare else None
    if damaged:
        raise InputError(
            f"damaged in {damaged}, which differs from its checksum: copy or download the file"
            " again"
        )


def plain_tensor(tensor: Tensor) -> Tensor:
    """A tensor of a file, floats in float32.

    Args:
        tensor: As the file gives it.

    Raises:
        ValueError: it is larger than what the file holds for it.
    """
    if tensor.numel() > tensor.untyped_storage().nbytes():
        raise ValueError("a tensor is larger than its storage")
    tensor = tensor.detach()
    return tensor.float() if tensor.is_floating_point() else tensor


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or infinity, if one does.

    Args:
        tensors: By name.
    """
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            return name
    return None


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors, by name.

    Args:
        tensors: By name.
    """
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def text_names(names: Sequence[Any]) -> list[str]:
    """Class names of a file as text that can be written.

    Args:
        names: As the file gives them.

    Raises:
        ValueError: there are none.
        UnicodeEncodeError: one cannot be written.
    """
    texts = [str(name) for name in names]
    if not "\n".join(texts).encode():
        raise ValueError("no class names")
    return texts
