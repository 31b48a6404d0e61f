"""Run folders: everything of a run lies in one, `runs/<command>-<number>` or where the user says.

config.yaml · checkpoints/{last,best}.ckpt · metrics.csv · metrics.json · plots/
"""

from pathlib import Path

from detector.errors import InputError

ROOT = Path("runs")


def last_checkpoint(run: Path) -> Path:
    return run / "checkpoints" / "last.ckpt"


def numbered(command: str) -> list[Path]:
    """The run folders of a command, oldest first."""
    found = [p for p in ROOT.glob(f"{command}-*") if p.name.removeprefix(f"{command}-").isdigit()]
    return sorted(found, key=lambda p: int(p.name.rpartition("-")[2]))


def next_run(command: str) -> Path:
    """The first number after those in use; nothing is created."""
    used = numbered(command)
    return ROOT / f"{command}-{int(used[-1].name.rpartition('-')[2]) + 1 if used else 1}"


def resolve_checkpoint(ckpt_path: str, run: Path | None) -> Path:
    """`last` or `best` -> that checkpoint of the run, by default of the most recent fit; anything else is a file.

    Raises:
        InputError: there is none; it says where it looked.
    """
    if ckpt_path not in ("last", "best"):
        if not Path(ckpt_path).is_file():
            raise InputError(f"ckpt_path {ckpt_path}: no such file; give a checkpoint, `last` or `best`")
        return Path(ckpt_path)
    runs = [run] if run else numbered("fit")
    with_checkpoint = [r for r in runs if last_checkpoint(r).is_file()]
    if not with_checkpoint:
        where = f"{run / 'checkpoints'}" if run else f"{ROOT / 'fit-*' / 'checkpoints'}"
        raise InputError(f"ckpt_path {ckpt_path}: no checkpoint in {where}; start a run without --ckpt_path first")
    newest = max(with_checkpoint, key=lambda r: last_checkpoint(r).stat().st_mtime_ns)
    path = newest / "checkpoints" / f"{ckpt_path}.ckpt"
    if not path.is_file():
        raise InputError(f"ckpt_path {ckpt_path}: there is no {path}")
    return path


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, if it lies in one."""
    run = checkpoint.parent.parent
    return run if checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file() else None
