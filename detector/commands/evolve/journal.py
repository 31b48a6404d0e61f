"""Where a study is kept: a journal in its folder, or any storage that Optuna has."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from detector.system.errors import InputError

NAME = "journal.log"


class Journal(JournalFileBackend):
    """Optuna's journal, that survives a line which was cut off in the middle by a power cut or a full disk: it never counted,
    and goes before the next line is written."""

    def __init__(self, path: Path) -> None:
        whole = str(path.resolve())
        super().__init__(whole, JournalFileOpenLock(whole, grace_period=15))  # s, for a lock whose holder was killed

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self._lock.acquire()
        try:
            with open(self._file_path, "r+b") as file:
                end = _end_of_last_line(file)
                file.truncate(end)
                file.seek(end)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        finally:
            with contextlib.suppress(RuntimeError):  # it was held for so long that another process took it
                self._lock.release()


def _end_of_last_line(file: BinaryIO) -> int:
    """Where the next line begins. Journal lines are short; one that is not ended is looked for block by block."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 4096)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def open_storage(folder: Path, url: str | None) -> BaseStorage:
    """The journal in a study's folder, or what a URL names.

    Raises:
        InputError: it cannot be opened or read.
    """
    try:
        if url is None:
            folder.mkdir(parents=True, exist_ok=True)
            return JournalStorage(Journal(folder / NAME))
        waiting = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}  # s, for another process that writes
        return RDBStorage(url, engine_kwargs=waiting)
    except OSError:
        raise
    except Exception as e:
        where = folder / NAME if url is None else "evolve.storage"
        raise InputError(f"{where} cannot be read: {' '.join(str(e).split())[:200]}; is it a study of evolve?") from None
