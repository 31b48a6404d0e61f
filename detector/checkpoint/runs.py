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
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import is_first_process, rank_zero_print

ROOT = Path("runs")
IN_USE = " is in use by "  # of the error for a run folder that another process has locked
_made: list[Path] = []  # folders that this process has made, each after those that it is in


def numbered(command: str) -> dict[int, Path]:
    """The run folders of a command by their numbers."""
    numbers = ((p.name.removeprefix(f"{command}-"), p) for p in ROOT.glob(f"{command}-*"))
    return {int(number): path for number, path in numbers if number.isdigit()}


def latest_fits(number: int) -> list[str]:
    """The folders of the most recent fits, in order."""
    fits = numbered("fit")
    return [str(fits[n]) for n in sorted(fits)[-number:]]


def new_run(command: str) -> Path:
    """Make the folder of a new run, runs/COMMAND-NUMBER, with the first number that no other
    process has taken; nothing, where nothing can be written: what is written first says so.

    In a process that another one of the same run has started it is that one's folder; one that
    somebody else has started (torchrun, Slurm) makes none: boltbox.callbacks.RunFolder tells it the
    first one's.
    """
    if not is_first_process():
        return Path(os.environ.get("BOLTBOX_RUN", ROOT / command))
    while True:
        folder = ROOT / f"{command}-{max(numbered(command), default=0) + 1}"
        try:
            make_run(folder, exist_ok=False)
        except OSError:
            if folder.exists():  # taken since
                continue
        os.environ["BOLTBOX_RUN"] = str(folder)
        return folder


def results_folder(command: str, run: Path | None) -> Path:
    """Where a command that trains nothing writes: `run`, or a new folder if there is none or it is
    a training's."""
    if run and not has_checkpoints(run):
        return run
    folder = new_run(command)
    if run:
        rank_zero_print(f"{command}: {run} keeps its training's files; the results go to {folder}")
    return folder


def make_run(run: Path, exist_ok: bool = True) -> None:
    """Make a folder, and those that it is in. One into which nothing is ever written is removed
    when the run or this process ends."""
    run = Path(os.path.abspath(run))
    missing = [folder for folder in (run, *run.parents) if not folder.exists()]
    run.mkdir(parents=True, exist_ok=exist_ok)
    _made.extend(reversed(missing))


@atexit.register
def remove_empty() -> None:
    """The folders that this process has made and nothing was written into."""
    while _made:
        with contextlib.suppress(OSError):
            _made.pop().rmdir()


def has_checkpoints(run: Path) -> bool:
    """Whether the folder is that of a training."""
    return any(run.glob("checkpoints/*.ckpt"))


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, if it lies in one."""
    run = checkpoint.parent.parent
    is_run = checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file()
    return run if is_run else None


def start_of(run: Path) -> str:
    """The folder that a run was started in (machine.json), as that lies from the run's folder; both
    may have moved together. This one, if that is not known."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        machine = json.loads((run / "machine.json").read_text(encoding="utf-8"))
        return os.path.abspath(run / os.path.relpath(machine["folder"], machine["run"]))
    return os.getcwd()


def path_from(start: str, path: str) -> str:
    """A path of a run's options as it is reached from here, if the run was started in the folder
    `start`."""
    found = os.path.join(start, path)
    return found if start != os.getcwd() and os.path.exists(found) else path


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Make the run folder if it is not there, and hold `.lock` in it, with a line that names this
    process; at the end remove what is empty. The kernel gives the lock back when the process is
    gone, however it ends, and forked processes, like a DataLoader's workers, do not hold it. Where
    the file system has no locks, the folder is used without.

    Raises:
        InputError: another process has it, or nothing can be written there.
    """
    lock = Path(os.path.abspath(run)) / ".lock"
    try:
        make_run(run)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as e:
        raise InputError(
            f"run {run}: nothing can be written there ({e.strerror}); give another folder with"
            " --run"
        ) from None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 300, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise InputError(
            f"run {run}{IN_USE}{holder}: wait until it has ended, or give another folder with --run"
        ) from None
    except OSError:  # there are no locks here
        pass
    name = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%F %T}"
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, name.encode(), 0)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(descriptor)
        remove_empty()
