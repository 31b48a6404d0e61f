"""Run folders: all files of a run are in one, `runs/<command>-<number>` or where the user says.

That of a fit holds machine.json, config.yaml, checkpoints/{last,previous,best}.ckpt, metrics.csv,
metrics.json, detections.npz, report.html and plots/.
"""

import atexit
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from boltbox.detector.system.atomic_file import make_folder, remove, write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import NO_FOLLOW, alone, try_lock
from boltbox.detector.system.rank_zero import is_first_process

ROOT = Path("runs")
MACHINE = "machine.json"  # the first file of a run folder
KEYS = ("command", "started", "folder", "run")  # that it has at least, all of them text
# in a folder that counts as empty: left by a process that was killed before it had written
# machine.json, and by Lightning's loggers, which in a script start before any callback
NOT_COUNTED = (".lock", f".{MACHINE}.tmp", "lightning_logs", "wandb")
IN_USE = " is in use by "  # of the error for a run folder that another process has locked
# by run folder that this process has begun, the folders that it made for it, inner ones first
_begun: dict[Path, list[Path]] = {}


def fits() -> Iterator[Path]:
    """The folders of fits in `runs`, without copies that lie beside their original."""
    for path in ROOT.glob("*"):
        machine = read_machine(path)
        if machine.get("command") == "fit":
            original = ROOT / Path(machine["run"]).name
            if original == path or not original.exists():  # it may have been renamed
                yield path


def latest_fits(count: int) -> list[str]:
    """The folders in `runs` of the fits that were started last, in order.

    Args:
        count: How many, at most.
    """
    started = sorted(fits(), key=lambda path: (path / MACHINE).stat().st_mtime_ns)
    return [str(path) for path in started[-count:]]


def new_run(command: str) -> Path:
    """Make the folder of a new run, runs/COMMAND-NUMBER, with the first number that no other
    process has taken. Where nothing can be written it is not made: the first file will fail.

    A process that another one of the same run has started gets that one's folder; one that somebody
    else has started (torchrun, Slurm) makes none: boltbox.callbacks.RunFolder tells it the first
    one's.

    Args:
        command: That the run is of.

    Returns:
        The folder.
    """
    if not is_first_process():
        return Path(os.environ.get("BOLTBOX_RUN", ROOT / command))
    while True:
        last = 0
        for path in ROOT.glob(f"{command}-*"):
            number = path.name.removeprefix(f"{command}-")
            if number.isdecimal():
                last = max(last, int(number))
        folder = ROOT / f"{command}-{last + 1}"
        try:
            make_run(folder, exist_ok=False)
        except OSError:
            if folder.exists():  # another process was faster
                continue
        os.environ["BOLTBOX_RUN"] = str(folder)
        return folder


def results_folder(command: str, run: Path | None) -> Path:
    """Where a command that trains nothing writes: into `run`, or a new folder if that is None or
    the folder of a training.

    Args:
        command: That the run is of.
        run: The folder that the user named, if one.

    Returns:
        The folder.
    """
    if run and not has_checkpoints(run):
        return run
    return new_run(command)


def make_run(run: Path, exist_ok: bool = True) -> None:
    """Make a folder, and those that it is in; see `remove_empty`.

    Args:
        run: The folder.
        exist_ok: Whether it may be there already.
    """
    run = Path(os.path.abspath(run))
    made = make_folder(run, exist_ok)
    _begun.setdefault(run, []).extend(made)


def remove_empty(run: Path) -> None:
    """Remove a run folder that this process has begun, and the folders that it made for it, if they
    hold nothing but machine.json.

    Args:
        run: The folder.
    """
    run = Path(os.path.abspath(run))
    if run not in _begun:
        return
    made = _begun.pop(run)
    with contextlib.suppress(OSError):
        if os.listdir(run) == [MACHINE]:
            (run / MACHINE).unlink()
        for folder in made:
            folder.rmdir()


@atexit.register
def remove_empty_runs() -> None:
    """`remove_empty` for every run folder that this process has begun."""
    for run in list(_begun):
        remove_empty(run)


def read_machine(run: Path) -> dict[str, Any]:
    """The content of machine.json, which marks a run folder; {} if there is none that boltbox
    wrote.

    Args:
        run: The folder.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads((run / MACHINE).read_text(encoding="utf-8"))
        if isinstance(content, dict) and all(isinstance(content.get(key), str) for key in KEYS):
            return content
    return {}


def write_machine(run: Path, command: str) -> None:
    """Write machine.json: where, when and by what a run was started.

    Args:
        run: The folder.
        command: That the run is of.
    """
    from boltbox.detector.system.host import host  # torch takes seconds to import

    content = {
        "command": command,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "folder": os.getcwd(),  # of relative paths in config.yaml
        "run": os.path.abspath(run),
    }
    write_atomically(run / MACHINE, json.dumps(content | host(), indent=1))


def check_run(run: Path) -> None:
    """Refuse a folder of something else: boltbox writes only into a run folder, an empty folder, or
    a new one. Folders without files and NOT_COUNTED do not count.

    Args:
        run: The folder.

    Raises:
        InputError: it holds other files.
    """
    if read_machine(run):
        return
    for file in run.rglob("*"):
        is_folder = file.is_dir() and not file.is_symlink()
        name = file.relative_to(run)
        if not is_folder and name.parts[0] not in NOT_COUNTED:
            raise InputError(
                f"run {run}: not a run folder (it holds {name} and no {MACHINE} of boltbox). Give"
                " a new or an empty folder with --run"
            )


def claim(run: Path, command: str, known: bool = False) -> None:
    """Mark a folder as a run folder, before anything else is written into it: make it if it is not
    there, and write machine.json if it has none. Every command that writes into a folder calls
    this.

    Args:
        run: The folder.
        command: That the run is of.
        known: The folder holds a boltbox checkpoint; its machine.json may be damaged.

    Raises:
        InputError: it is the folder of something else (`check_run`; nothing is written), or nothing
            can be written there.
    """
    if not known:
        check_run(run)
    try:
        make_run(run)
        with alone(run):  # commands that take part in one study may begin together
            if not read_machine(run):
                write_machine(run, command)
    except OSError as e:
        raise InputError(
            f"run {run}: nothing can be written there ({e.strerror}); give another folder with"
            " --run"
        ) from None


def has_checkpoints(run: Path) -> bool:
    """Whether the folder is that of a training.

    Args:
        run: The folder.
    """
    return any(run.glob("checkpoints/*.ckpt"))


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, if it lies in one.

    Args:
        checkpoint: The file.
    """
    run = checkpoint.parent.parent
    if checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file():
        return run
    return None


def start_of(run: Path) -> str:
    """The folder that a run was started in (machine.json), relative to the run folder, as both may
    have moved together. The current one, if that is not known.

    Args:
        run: The folder.
    """
    machine = read_machine(run)
    if not machine:
        return os.getcwd()
    try:
        return os.path.abspath(run / os.path.relpath(machine["folder"], machine["run"]))
    except ValueError:  # on two drives of Windows
        return machine["folder"]


def path_from(start: str, path: str) -> str:
    """A path in the options of a run that was started in the folder `start`, as it is reached from
    the current one.

    Args:
        start: That folder.
        path: As the options give it.

    Returns:
        The path from the current folder, if a file is there; else as given.
    """
    moved = os.path.join(start, path)
    if start != os.getcwd() and os.path.exists(moved):
        return moved
    return path


@contextlib.contextmanager
def locked(run: Path, command: str, known: bool = False) -> Iterator[None]:
    """`claim` a run folder and hold `.lock` in it, with a line that names this process; at the end
    remove what is empty. The kernel gives the lock back when the process is gone, however it ends,
    and forked processes, like a DataLoader's workers, do not hold it. Where the file system has no
    locks, the folder is used without.

    machine.json is that of the newest command; of a fit, which may be resumed and have nothing left
    to do, boltbox.callbacks.RunFolder writes it.

    Args:
        run: The folder.
        command: That runs in it.
        known: See `claim`.

    Raises:
        InputError: another process has it, or it cannot be claimed.
    """
    claim(run, command, known)
    lock = Path(os.path.abspath(run)) / ".lock"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
    except OSError as e:
        raise InputError(
            f"run {run}: {lock} cannot be opened ({e.strerror}). Remove it if the run has ended, or"
            " give another folder with --run"
        ) from None
    if not try_lock(descriptor):
        holder = os.read(descriptor, 300).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise InputError(
            f"run {run}{IN_USE}{holder}: wait until it has ended, or give another folder with --run"
        )
    name = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%F %T}"
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.write(descriptor, name.encode())
    try:
        for pattern in (".*.tmp", "*/.*.tmp"):  # of processes that were killed
            for file in run.glob(pattern):
                remove(file)
        if command != "fit":
            write_machine(run, command)
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(descriptor)
        remove_empty(run)
