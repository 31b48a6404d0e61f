"""Whose folder a run writes into: its own, alone, and nothing that is not a run's."""

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger
from made_runs import QUICK, ROOT, load
from ranks import together
from small_fit import small_fit

import cli
from boltbox.callbacks import AutoAnchor, DoctorCheck, Pictures, Report, RunFolder, recipe
from boltbox.detector.checkpoint.runs import claim, locked, new_run
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.report.video_file import VideoFile
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

TOGETHER = 3
ROUNDS = 4
QUIET = ["--trainer.enable_progress_bar", "false", "--report.enabled", "false"]


class Wait(L.Callback):
    """At the end of the second epoch, until the file `go` is there."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        while trainer.current_epoch == 1 and not Path("go").exists():
            Path("waits").touch()
            time.sleep(0.02)


class Where(L.Callback):
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        Path(f"rank{trainer.global_rank}").write_text(trainer.default_root_dir)


class Late(CSVLogger):
    """Starts when the run has its folder."""

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir)
        assert json.loads(Path(save_dir, "machine.json").read_text())["command"] == "fit"


def start(line: list[str]) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")])
    kept = {
        k: v for k, v in os.environ.items() if k not in ("BOLTBOX_RUN", "PYTEST_XDIST_WORKER")
    } | {"PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *line],
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def small(data: Path, *more: str) -> list[str]:
    """A fit of one epoch in a folder of its own choice."""
    one = "--trainer.max_epochs 1 --trainer.limit_train_batches 1"
    line = small_fit(data, Path("-"), *one.split(), *more)
    place = line.index("--run")
    return line[:place] + line[place + 2 :]


def refused(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        cli.main(line)
    told = capsys.readouterr().err
    assert leaving.value.code == 2
    assert told.startswith("error: ")
    assert told.count("\n") == 1, told
    return told


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, not to be written to."""
    run = tmp_path_factory.mktemp("trained") / "run"
    cli.main([*small(small_data), "--run", str(run)])
    return run


def reserve(number: int, begin: int) -> None:
    """In a process of its own: a folder, from the moment on that the pipe is closed. Numbers of a
    round follow each other."""
    code = 1
    try:
        os.read(begin, 1)
        run = new_run("fit")
        Path(f"chosen-{number}").touch()
        first = number - number % TOGETHER
        # before any of them writes
        while not all(Path(f"chosen-{k}").exists() for k in range(first, first + TOGETHER)):
            time.sleep(0.001)
        with locked(run, "fit"):
            (run / "config.yaml").write_text(str(number))
        code = 0
    finally:
        os._exit(code)


def test_processes_that_start_together_have_folders_of_their_own(here: Path) -> None:
    for k in range(ROUNDS):
        begin, now = os.pipe()
        children = []
        for number in range(TOGETHER):
            child = os.fork()
            if child == 0:
                os.close(now)
                reserve(k * TOGETHER + number, begin)
            children.append(child)
        os.close(now)
        os.close(begin)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * TOGETHER
    written = [
        (here / f"runs/fit-{k + 1}/config.yaml").read_text() for k in range(ROUNDS * TOGETHER)
    ]
    assert sorted(map(int, written)) == list(range(ROUNDS * TOGETHER))


@pytest.mark.usefixtures("quick_starts")
def test_trainings_that_start_together(small_data: Path, here: Path) -> None:
    """Configuration, figures and checkpoints in a folder are of one training."""
    runs = [start(small(small_data, "--seed_everything", str(seed))) for seed in (0, 1)]
    told = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    folders = sorted((here / "runs").iterdir())
    assert [f.name for f in folders] == ["fit-1", "fit-2"]
    seeds = []
    for folder in folders:
        seeds.append(yaml.safe_load((folder / "config.yaml").read_text())["seed_everything"])
        for name in ("last", "best"):
            content = load(folder / f"checkpoints/{name}.ckpt")
            assert yaml.safe_load(content["run"]["config"])["seed_everything"] == seeds[-1]
        assert not (folder / ".lock").exists()
    assert sorted(seeds) == [0, 1]


@pytest.mark.usefixtures("quick_starts")
def test_a_second_process_in_one_run_is_refused(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the first one is gone, however that ends; not until its workers are."""
    own = "--run run --trainer.max_epochs 2 --data.workers 2"
    line = [*small(small_data), *own.split()]
    first = start([*line, "--trainer.callbacks", "test_run_folders.Wait"])
    resume = ["fit", "--run", "run", "--ckpt_path", "last", "--trust_parts", "true"]
    workers: list[int] = []
    try:
        while first.poll() is None and not (
            (here / "waits").exists() and (here / "run/checkpoints/last.ckpt").exists()
        ):
            time.sleep(0.05)
        assert first.poll() is None
        before = (here / "run/config.yaml").read_bytes()
        for second in (line, resume, [*line, "--ckpt_path", "auto", *resume[-2:]]):
            told = refused([*second, *QUIET[:2]], capsys)
            assert (
                f"run run is in use by process {first.pid} on {socket.gethostname()} since 20"
                in told
            )
        assert (here / "run/config.yaml").read_bytes() == before
        workers = children(first.pid)
        assert len(workers) >= 2
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)  # or it would notice within seconds that it is alone
    finally:
        first.kill()
        first.wait()
        (here / "go").touch()
    try:
        cli.main([*resume, "--data.workers", "0", *QUIET])
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):  # it ends with its parent
                os.kill(worker, signal.SIGKILL)
    assert load(here / "run/checkpoints/last.ckpt")["epoch"] == 1


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(stat.parent.name))
    return found


def test_processes_that_torchrun_has_started_are_one_run(small_data: Path, here: Path) -> None:
    """Without --run: those after the first learn its folder."""
    line = small(
        small_data, "--trainer.devices", "2", "--trainer.callbacks", "test_run_folders.Where"
    )
    (here / "runs/fit-1").mkdir(parents=True)
    together(lambda: cli.main(line))
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["fit-1", "fit-2"]
    assert {(here / f"rank{rank}").read_text() for rank in (0, 1)} == {"runs/fit-2"}


def hold(taken: Any, free: Any) -> None:
    """In a process of its own."""
    with locked(Path("runs/fit-1"), "fit"):
        taken.set()
        free.wait(60)


def test_a_script_has_its_folder_alone(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And evaluates in another one."""
    data = DetectionData(str(small_data), image_size=64, batch_size=8, workers=0)
    network = NetworkOptions(width_multiple=0.125, depth_multiple=0.1, levels=[5])
    detector = Detector(data.names, network=network)
    quiet: dict[str, Any] = {
        "enable_progress_bar": False,
        "accelerator": "cpu",
        "precision": "32-true",
        "logger": False,
        "callbacks": [kind(enabled=False) for kind in (Report, Pictures, AutoAnchor, DoctorCheck)],
    }
    first, second = (
        L.Trainer(**recipe(max_epochs=1, limit_train_batches=1, **quiet)) for _ in range(2)
    )
    assert [first.default_root_dir, second.default_root_dir] == ["runs/fit-1", "runs/fit-2"]
    taken = multiprocessing.Event()
    free = multiprocessing.Event()
    other = multiprocessing.get_context("fork").Process(target=hold, args=(taken, free))
    other.start()
    assert taken.wait(60)
    with pytest.raises(InputError, match=rf"^run runs/fit-1 is in use by process {other.pid} on "):
        first.fit(detector, data)
    free.set()
    other.join()
    first.fit(detector, data)
    files = {p: p.read_bytes() for p in (here / "runs/fit-1").rglob("*") if p.is_file()}
    assert {"config.yaml", "metrics.json"} <= {p.name for p in files}
    first.validate(detector, data)
    assert "metrics:   runs/validate-1/metrics.json\n" in capsys.readouterr().out
    assert json.loads((here / "runs/validate-1/metrics.json").read_text())["command"] == "validate"
    assert first.default_root_dir == "runs/fit-1"
    assert {p: p.read_bytes() for p in (here / "runs/fit-1").rglob("*") if p.is_file()} == files


def test_a_command_that_fails_leaves_no_folder(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (small(small_data), [*small(small_data), "--run", "a/b"]):
        assert "strategy" in refused([*line, "--trainer.strategy", "fsdp"], capsys)
        assert not list(here.iterdir())


def test_a_file_system_without_locks(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    cli.main(small(small_data))
    assert (here / "runs/fit-1/checkpoints/last.ckpt").is_file()


@pytest.mark.parametrize("command", ["test", "predict"])
def test_a_training_keeps_its_files(
    command: str, trained: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is done with its checkpoint, its files are those of the training, and `compare` says
    so."""
    shutil.copytree(trained, here / "run")
    content = yaml.safe_load(small_data.read_text()) | {
        "path": str(small_data.parent),
        "test": "images/val",
    }
    (here / "data.yaml").write_text(yaml.safe_dump(content))
    files = {p: p.read_bytes() for p in (here / "run").rglob("*") if p.is_file()}
    given = (
        ["--source", str(small_data.parent / "images/val"), "--device", "cpu"]
        if command == "predict"
        else ["--data.dataset", "data.yaml", "--trainer.accelerator", "cpu", *QUIET]
    )
    own = f"runs/{command}-1"
    cli.main([command, "--ckpt_path", "best", "--run", "run", *given])
    assert f":   {own}" in capsys.readouterr().out
    assert list((here / own).iterdir())
    assert {p: p.read_bytes() for p in (here / "run").rglob("*") if p.is_file()} == files
    if command == "test":
        cli.main(["compare", "run", "runs/test-1"])
        rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
        assert ["run", "fit"] in rows
        assert ["runs/test-1", "test"] in rows


@pytest.mark.parametrize("command", [["fit"], ["anchors"], ["doctor"], ["benchmark"]])
def test_a_folder_that_takes_no_files(
    command: list[str], small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(
        [*command, "--data.dataset", str(small_data), *QUICK[:4], "--run", "/proc/none"], capsys
    )
    assert told.startswith("error: run /proc/none: nothing can be written there (")
    assert "--run" in told


def test_a_folder_of_runs_that_leads_nowhere(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs").symlink_to("unmounted")
    line = ["fit", "--data.dataset", str(small_data), *QUICK[:4]]
    assert "run runs/fit-1: nothing can be written there" in refused(line, capsys)


def test_what_a_resume_may_change(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the optimizer, also where the new one has the same groups, and the run can be resumed
    after the refusal; the average can be left out. Layers are frozen, but not all."""
    line = small_fit(small_data, here / "run", "--trainer.max_epochs", "1")
    cli.main([*line, "--trainer.limit_train_batches", "1"])
    again = ["fit", "--ckpt_path", "last", "--run", "run", "--trainer.max_epochs", "2"]
    told = refused([*again, "--model.optim.optimizer", "AdamW"], capsys)
    assert "optimizer state is of another optimizer" in told
    cli.main([*again, "--ema.enabled", "false"])
    state = torch.load("run/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert not [name for name in state if name.startswith("ema.")]
    line = small_fit(small_data, here / "frozen", "--model.start.freeze", "11")
    assert "model.start.freeze 11: nothing is left to train" in refused(line, capsys)


def test_a_comparison_into_a_folder_that_takes_no_files(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, here / "other")
    assert "error: run /proc/none: nothing can be written there (" in refused(
        ["compare", str(trained), "other", "--run", "/proc/none"], capsys
    )


def test_links_are_not_written_through(small_data: Path, here: Path) -> None:
    """Where a file is written beside, and moved, a link of that name waits."""
    victim = here / "victim"
    victim.write_text("untouched")
    names = "config.yaml", "machine.json", "metrics.csv", "checkpoints/last.ckpt"
    claim(here / "run", "fit")
    for name in names:
        beside = here / "run" / Path(name).with_name(f".{Path(name).name}.tmp")
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.symlink_to(victim)
    cli.main([*small(small_data), "--run", "run"])
    assert victim.read_text() == "untouched"
    assert all((here / "run" / name).is_file() for name in names)
    assert not list((here / "run").rglob("*.tmp"))


def test_links_beside_pictures_and_videos(trained: Path, small_data: Path, here: Path) -> None:
    victim = here / "victim"
    image = min((small_data.parent / "images/val").iterdir())
    victim.write_text("untouched")
    claim(here / "out", "predict")
    (here / "out/images").mkdir()
    (here / f"out/images/.{image.stem}.jpg.tmp").symlink_to(victim)
    cli.main(["predict", "--ckpt_path", str(trained / "checkpoints/last.ckpt"), "--source", str(image), "--run", "out",
              "--device", "cpu"])  # fmt: skip
    assert [p.name for p in (here / "out/images").iterdir()] == [f"{image.stem}.jpg"]
    (here / ".film.mp4.tmp.mp4").symlink_to(victim)
    VideoFile(here / "film.mp4", 5, (64, 64)).close()
    assert victim.read_text() == "untouched"


COMMANDS = {
    "fit": "--data.dataset {data}",
    "validate": "--ckpt_path {run}/checkpoints/last.ckpt",
    "test": "--ckpt_path {run}/checkpoints/last.ckpt",
    "anchors": "--data.dataset {data}",
    "doctor": "--data.dataset {data}",
    "benchmark": "--data.dataset {data}",
    "evolve": "--data.dataset {data}",
    "predict": "--ckpt_path {run}/checkpoints/last.ckpt --source {images}",
    "compare": "{run} {run}/../run-2",
}


def command_line(command: str, trained: Path, data: Path) -> list[str]:
    images = data.parent / "images/val"
    return [command, *COMMANDS[command].format(data=data, run=trained, images=images).split()]


@pytest.mark.parametrize("command", [*COMMANDS, "report", "recipe"])
def test_a_folder_of_something_else_is_left_alone(
    command: str, trained: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A project, whatever its files are called."""
    mine = {"config.yaml": "mine", "machine.json": "{}", "src/metrics.json": "{}"}
    (here / "project/src").mkdir(parents=True)
    for name, text in mine.items():
        (here / "project" / name).write_text(text)
    os.chdir("project")
    if command == "recipe":
        with pytest.raises(InputError, match=r"^run \.: not a run folder \("):
            recipe(run=".")
    elif command == "report":
        assert "run .: not a run folder (" in refused(["report", "."], capsys)
    else:
        shutil.copytree(trained, trained.parent / "run-2", dirs_exist_ok=True)
        line = [*command_line(command, trained, small_data), "--run", "."]
        assert "run .: not a run folder (" in refused(line, capsys)
    left = {str(p.relative_to(here / "project")): p for p in Path().absolute().rglob("*")}
    assert {name: p.read_text() for name, p in left.items() if p.is_file()} == mine
    assert sorted(left) == sorted([*mine, "src"])


@pytest.mark.parametrize("command", ["anchors", "doctor", "predict", "compare"])
def test_every_command_marks_its_folder(
    command: str, trained: Path, small_data: Path, here: Path
) -> None:
    """So that it may write there again."""
    shutil.copytree(trained, trained.parent / "run-2", dirs_exist_ok=True)
    line = command_line(command, trained, small_data)
    if command in ("anchors", "doctor"):
        line += ["--data.image_size", "64", "--data.workers", "0"]
    if command == "predict":
        line += ["--labels", "false", "--device", "cpu"]
    for _ in range(2):
        with contextlib.suppress(SystemExit):  # of a doctor who finds something
            cli.main([*line, "--run", "out"])
        assert len(list((here / "out").iterdir())) > 1
        assert json.loads((here / "out/machine.json").read_text())["command"] == command


def test_a_finished_run_is_left_alone(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resume trains nothing, and the run was not started anew. What a kill has left goes."""
    shutil.copytree(trained, here / "run")
    files = {p: p.read_bytes() for p in (here / "run").rglob("*") if p.is_file()}
    for name in (".metrics.json.tmp", "checkpoints/.last.ckpt.tmp"):
        (here / "run" / name).write_text("half")
    cli.main(["fit", "--ckpt_path", "last", "--run", "run"])
    assert "resume:    run/checkpoints/last.ckpt\n" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in (here / "run").rglob("*") if p.is_file()} == files


def test_what_a_killed_start_leaves_is_no_hindrance(small_data: Path, here: Path) -> None:
    """And loggers start after the folder is marked."""
    (here / "run/plots").mkdir(parents=True)
    for name in (".lock", ".machine.json.tmp"):
        (here / "run" / name).write_text("half")
    own = "--run run --trust_parts true --trainer.logger test_run_folders.Late"
    cli.main([*small(small_data), *own.split(), "--trainer.logger.save_dir", "run"])
    files = {path.name for path in (here / "run").iterdir()}
    assert {"machine.json", "config.yaml", "checkpoints"} <= files
    assert not {".lock", ".machine.json.tmp"} & files


def test_run_folder_alone_in_a_script(small_data: Path, here: Path) -> None:
    """Lightning's default logger has begun before it."""
    data = DetectionData(str(small_data), image_size=64, batch_size=8, workers=0)
    network = NetworkOptions(width_multiple=0.125, depth_multiple=0.1, levels=[5])
    trainer = L.Trainer(
        default_root_dir="bare",
        callbacks=[RunFolder()],
        max_epochs=1,
        limit_train_batches=1,
        limit_val_batches=0,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(Detector(data.names, network=network), data)
    assert {"lightning_logs", "machine.json", "config.yaml"} == {
        path.name for path in (here / "bare").iterdir()
    }
