"""Checkpoint files: whether one is whole, and the newest that is."""

import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from detector.checkpoint.content import Unlike, check_checkpoint
from detector.checkpoint.yolov5_weights import load_restricted
from detector.model.parts import MissingPart
from detector.system.errors import InputError


def fault(path: Path) -> str:
    """What is wrong with a checkpoint file, in a few words; an empty string if every byte of its records is as it was written
    and its content is that of a training checkpoint.

    Nothing in the file is executed, whoever made it.

    Raises:
        MissingPart: the file may be whole, but it needs a class of the user's own that is not found.
    """
    return _fault(path, load_checkpoint)


def damage(path: Path) -> str:
    """The same of the file alone, whatever it holds: for what was just written."""
    return _fault(path, lambda file: load_restricted(file, []))


def _fault(path: Path, load: Callable[[Path], object]) -> str:
    try:
        size = path.stat().st_size
        if not size:
            return "empty"
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = [PurePosixPath(e.filename.replace("\\", "/")) for e in entries]
            if any(n.is_absolute() or ".." in n.parts for n in names):
                return "refused, because it names a file outside itself"
            if any(e.compress_type != zipfile.ZIP_STORED for e in entries) or sum(e.file_size for e in entries) > size:
                return "refused, because it claims to hold more than the file does"
            broken = archive.testzip()  # compares every record with its checksum
            if broken:
                return f"damaged in {broken}"
        load(path)
    except MissingPart:
        raise
    except InputError as e:
        return str(e).removeprefix(f"{path}: ")
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError) as e:
        return f"cut short, or not a checkpoint ({str(e).splitlines()[0] if str(e) else type(e).__name__})"
    return ""


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a training checkpoint of ours: tensors and plain types.

    Raises:
        InputError: not one, or a file that holds anything else; or (MissingPart) a class of the user's own is not found.
    """
    content = load_restricted(path, [])
    try:
        check_checkpoint(content)
    except MissingPart as e:
        raise MissingPart(f"{path}: {e}") from None
    except Unlike as e:
        raise InputError(f"{path}: not a training checkpoint of a detector ({e})") from None
    return content


def newest_intact(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a folder, and a line for each newer one that is not."""
    passed: list[str] = []
    for path in sorted(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, reverse=True):
        wrong = fault(path)
        if not wrong:
            return path, passed
        passed.append(f"{path}: {wrong}; passed over")
    return None, passed
