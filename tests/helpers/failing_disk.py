"""System calls that fail for files in one folder, as on a disk that is full, broken or mounted
read-only."""

import builtins
import errno
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir")
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO, "read-only": errno.EROFS}


class _File:
    """A file whose `write` may fail."""

    def __init__(self, file: Any, fail: Callable[[], None]) -> None:
        self.file = file
        self.fail = fail

    def write(self, data: Any) -> Any:
        self.fail()
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()


@contextmanager
def failing(
    folder: Path, calls: tuple[str, ...], number: int, is_due: Callable[[str], bool]
) -> Iterator[list[str]]:
    """While this lasts, these of CALLS fail for files in the folder, where `is_due(path)` says so.

    Args:
        number: the error's errno.

    Yields:
        The calls that failed so far, as "CALL PATH".
    """
    failed: list[str] = []

    def check(call: str, *paths: Any) -> None:
        for path in paths:
            name = (
                os.readlink(f"/proc/self/fd/{path}")
                if isinstance(path, int)
                else os.path.abspath(os.fsdecode(path))
            )
            if call in calls and Path(name).is_relative_to(folder) and is_due(name):
                failed.append(f"{call} {name}")
                raise OSError(number, os.strerror(number), name)

    def wrapped(call: str, whole: Any, paths: int) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            check(call, *args[:paths])
            return whole(*args, **options)

        return run

    def opened(whole: Any) -> Any:
        def run(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            writes = isinstance(path, str | os.PathLike) and any(
                letter in mode for letter in "wax+"
            )
            if writes:
                check("open", path)
            file = whole(path, mode, *args, **options)
            return (
                _File(file, lambda: check("write", path)) if writes and "write" in calls else file
            )

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", opened(open))
        patch.setattr(pathlib.io, "open", opened(open))  # type: ignore[attr-defined]
        for call, name, paths in (
            *(("replace", name, 2) for name in ("replace", "rename")),
            *(("unlink", name, 1) for name in ("unlink", "remove")),
            ("mkdir", "mkdir", 1),
            ("fsync", "fsync", 1),
        ):
            patch.setattr(os, name, wrapped(call, getattr(os, name), paths))
        real = os.open

        def os_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                check("open", path)
            return real(path, flags, *args, **options)

        patch.setattr(os, "open", os_open)
        yield failed
