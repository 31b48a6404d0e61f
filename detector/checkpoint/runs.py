"""Run folders: everything of a run lies in one, `runs/<command>-<number>` or where the user says.

config.yaml · checkpoints/{last,previous,best}.ckpt · metrics.csv · metrics.json · detections.npz ·
report.html · plots/
"""

import atexit
import contextlib
import fcntl
import json
import os
import socket
from datetime import datetime
from os.path import exists, isdir, isfile
from pathlib import Path

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import is_first_process

ROOT = Path("runs")
FILES = (
    "config.yaml",
    "changed.yaml",
    "metrics.json",
    "metrics.csv",
    "detections.npz",
    "report.html",
)
_made: list[Path] = []  # folders that this process has made, each after those that it is in
_held: set[int] = set()  # descriptors of locks of this process


def numbered(command: str) -> list[Path]:
    """The run folders of a command, oldest first."""
    found = [p for p in ROOT.glob(f"{command}-*") if p.name.removeprefix(f"{command}-").isdigit()]
    return sorted(found, key=lambda p: int(p.name.rpartition("-")[2]))


def next_run(command: str) -> Path:
    """The first number after those in use; nothing is created."""
    used = numbered(command)
    return ROOT / f"{command}-{int(used[-1].name.rpartition('-')[2]) + 1 if used else 1}"


def new_run(command: str) -> Path:
    """Make the folder of a new run, with the first number that no other process has taken; nothing,
    where nothing can be written: what is written first says so."""
    check_run(ROOT)
    while True:
        folder = next_run(command)
        try:
            make_run(folder, exist_ok=False)
        except FileExistsError:  # taken since
            continue
        except OSError:
            pass
        return folder


def own_run(command: str) -> Path:
    """The folder of a new run, runs/COMMAND-NUMBER; in a process that another one of the same run
    has started, that one's. One that somebody else has started (torchrun, Slurm) makes none:
    boltbox.callbacks.RunFolder tells it the first one's."""
    if is_first_process():
        folder = new_run(command)
    else:
        folder = Path(os.environ.get("BOLTBOX_RUN") or next_run(command))
    os.environ["BOLTBOX_RUN"] = str(folder)
    return folder


def make_run(run: Path, exist_ok: bool = True) -> list[Path]:
    """Make a folder, and those that it is in; each that was not there, from outside in. One into
    which nothing is ever written is removed when this process ends."""
    run = Path(os.path.abspath(run))
    missing = [folder for folder in (run, *run.parents) if not folder.exists()]
    run.mkdir(parents=True, exist_ok=exist_ok)
    missing.reverse()
    _made.extend(missing)
    return missing


@atexit.register
def remove_empty(folders: list[Path] = _made) -> None:
    """Those of the folders that nothing was written into; default: all that this process has
    made."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
    folders.clear()


def has_checkpoints(run: Path) -> bool:
    """Whether the folder is that of a training."""
    return any(checkpoints_of(run).glob("*.ckpt"))


def refuse_foreign(run: Path) -> None:
    """Raises InputError for a folder outside of the working folder that holds files with the names
    of a run's, but neither machine.json nor checkpoints as every run has: they are not ours to
    replace."""
    if (
        run.resolve().is_relative_to(Path.cwd().resolve())
        or isfile(run / "machine.json")
        or has_checkpoints(run)
    ):
        return
    if taken := [name for name in FILES if os.path.lexists(run / name)]:
        raise InputError(
            f"run {run}: it holds {', '.join(taken)}, which would be replaced, but no machine.json,"
            " so no run has written them; give another folder with --run"
        )


def check_run(run: Path) -> None:
    """Raises InputError if the run, a folder that it is in, or the one for its checkpoints is a
    file."""
    for folder in (*reversed(run.parents), run, checkpoints_of(run)):
        if exists(folder) and not isdir(folder):
            raise InputError(
                f"run {run}: {folder} is not a folder; move it away, or give another folder with"
                " --run"
            )


def checkpoints_of(run: Path) -> Path:
    """The folder of a run's checkpoints."""
    return run / "checkpoints"


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, if it lies in one."""
    run = checkpoint.parent.parent
    return (
        run if checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file() else None
    )


def start_folders(run: Path) -> list[Path]:
    """Where a relative path of a run's config.yaml may start, likely ones first: the folder that
    the run was started in, as it lies from the run's folder (both may have moved together) and
    where it was (machine.json); without these the folder of `runs/`; the working folder of now."""
    try:
        machine = json.loads((run / "machine.json").read_text(encoding="utf-8"))
        then = str(machine["folder"])
        moved = os.path.abspath(run / os.path.relpath(then, str(machine["run"])))
        found = [Path(moved), Path(then)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        found = [Path(os.path.abspath(run)).parent.parent]
    return [*found, Path.cwd()]


def path_from(run: Path, path: str) -> str:
    """A path of a run's config.yaml as it is reached from here; one that is nowhere stays as it
    is."""
    for folder in start_folders(run):
        if os.path.exists(folder / path):
            return path if folder == Path.cwd() else os.path.abspath(folder / path)
    return path


class RunLock:
    """`.lock` in the run folder, locked, with a line that names the process which has it.

    The kernel gives the lock back when that process is gone, however it ends. It is one of flock:
    one of lockf is lost as soon as anything in the process closes the file, as a copy of the folder
    does. But processes that are forked share it, and workers of a DataLoader outlive a killed
    training by seconds: each closes its copy of the descriptor when it begins.

    Args:
        run: the folder.
    """

    def __init__(self, run: Path) -> None:
        self.run, self.path = run, Path(os.path.abspath(run)) / ".lock"
        self._descriptor: int | None = None
        self._made: list[Path] = []

    def take(self) -> None:
        """Make the folder if it is not there, and lock it. Where the file system has no locks, it
        is used without.

        Raises:
            InputError: another process has it, nothing can be written there, or what lies there is
                not of a run.
        """
        check_run(self.run)
        refuse_foreign(self.run)
        while self._descriptor is None:
            try:
                self._made += make_run(self.run)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except OSError as e:
                raise InputError(
                    f"run {self.run}: nothing can be written there ({e.strerror}); give another"
                    " folder with --run"
                ) from None
            _held.add(descriptor)
            if self._lock(descriptor):
                self._descriptor = descriptor
            else:
                _close(descriptor)

    def release(self) -> None:
        """Remove the file, and the folder if `take` has made it and it is empty. Nothing happens
        where it is not held: before `take`, a second time, in a forked process."""
        if self._descriptor in _held:
            with contextlib.suppress(OSError):
                self.path.unlink()
            _close(self._descriptor)
            remove_empty(self._made)
        self._descriptor = None

    def _lock(self, descriptor: int) -> bool:
        """Whether this process has it now; not if another one has removed the file meanwhile."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = os.pread(descriptor, 300, 0).decode(errors="replace")
            _close(descriptor)
            holder = "".join(c for c in told if c.isprintable()) or "another process"
            raise InputError(
                f"run {self.run} is in use by {holder}: wait until it has ended, or give another"
                " folder with --run"
            ) from None
        except OSError:  # there are no locks here
            pass
        try:
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                return False
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(descriptor, 0)
            os.pwrite(
                descriptor,
                f"process {os.getpid()} on {socket.gethostname()} "
                f"since {datetime.now():%F %T}".encode(),
                0,
            )
        return True


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def _forget() -> None:
    """In a forked process, which is another one's worker."""
    for descriptor in list(_held):
        _close(descriptor)


os.register_at_fork(after_in_child=_forget)
