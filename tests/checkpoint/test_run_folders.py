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
import time
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
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
ROUNDS = 2
QUIET = ["--trainer.enable_progress_bar", "false", "--report.enabled", "false"]


class Where(L.Callback):
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        Path(f"rank{trainer.global_rank}").write_text(trainer.default_root_dir)


class Late(CSVLogger):
    """Starts when the run has its folder."""

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir)
        assert json.loads(Path(save_dir, "machine.json").read_text())["command"] == "fit"


def small(data: Path, *more: str) -> list[str]:
    """A fit of one epoch in a folder of its own choice."""
    one = "--trainer.max_epochs 1 --trainer.limit_train_batches 1"
    line = small_fit(data, Path("-"), *one.split(), *more)
    place = line.index("--run")
    return line[:place] + line[place + 2 :]


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


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


def hold(taken: Any) -> None:
    """In a process of its own, which has a child, like a worker of a loader."""
    with locked(Path("run"), "fit"):
        if os.fork():
            taken.set()
        time.sleep(60)


def test_a_second_process_in_one_run_is_refused(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the first one is gone, however that ends; not until its children are."""
    taken = multiprocessing.Event()
    first = multiprocessing.get_context("fork").Process(target=hold, args=(taken,))
    first.start()
    try:
        assert taken.wait(60)
        (worker,) = children(first.pid)
        told = refused([*small(small_data), "--run", "run"], capsys)
        assert f"run run is in use by process {first.pid} on {socket.gethostname()}" in told
        with pytest.raises(InputError, match="in use"), locked(Path("run"), "fit"):
            pass
    finally:
        first.kill()
        first.join()
    try:
        with locked(Path("run"), "fit"):
            assert Path("run/.lock").is_file()
    finally:
        os.kill(worker, signal.SIGKILL)
    assert not Path("run/.lock").exists()


def children(parent: int | None) -> list[int]:
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
    first.fit(detector, data)
    files = contents(here / "runs/fit-1")
    assert {"config.yaml", "metrics.json"} <= {p.name for p in files}
    first.validate(detector, data)
    assert "metrics:   runs/validate-1/metrics.json\n" in capsys.readouterr().out
    assert json.loads((here / "runs/validate-1/metrics.json").read_text())["command"] == "validate"
    assert first.default_root_dir == "runs/fit-1"
    assert contents(here / "runs/fit-1") == files


def test_a_command_that_fails_leaves_no_folder(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (small(small_data), [*small(small_data), "--run", "a/b"]):
        assert "strategy" in refused([*line, "--trainer.strategy", "fsdp"], capsys)
        assert not list(here.iterdir())


def test_a_file_system_without_locks(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(Path("run"), "fit"):
        assert Path("run/machine.json").is_file()


def test_a_training_keeps_its_files(
    trained: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is done with its checkpoint."""
    shutil.copytree(trained, here / "run")
    files = contents(here / "run")
    source = ["--source", str(small_data.parent / "images/val"), "--device", "cpu"]
    cli.main(["predict", "--ckpt_path", "best", "--run", "run", *source])
    assert ":   runs/predict-1" in capsys.readouterr().out
    assert list((here / "runs/predict-1").iterdir())
    assert contents(here / "run") == files


@pytest.mark.parametrize("command", ["fit", "doctor", "compare", "link"])
def test_a_folder_that_takes_no_files(
    command: str, trained: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last is a folder of runs that leads nowhere."""
    line = [command, "--data.dataset", str(small_data), "--run", "/proc/none"]
    if command == "compare":
        shutil.copytree(trained, here / "other")
        line = ["compare", str(trained), "other", "--run", "/proc/none"]
    if command == "link":
        (here / "runs").symlink_to("unmounted")
        line = ["fit", *line[1:3]]
    told = refused(line, capsys)
    folder = "runs/fit-1" if command == "link" else "/proc/none"
    assert told.startswith(f"error: run {folder}: ")
    assert "--run" in told


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
    "doctor": "--data.dataset {data}",
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


@pytest.mark.parametrize("command", ["doctor", "predict"])
def test_every_command_marks_its_folder(
    command: str, trained: Path, small_data: Path, here: Path
) -> None:
    """So that it may write there again."""
    shutil.copytree(trained, trained.parent / "run-2", dirs_exist_ok=True)
    line = command_line(command, trained, small_data)
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
    files = contents(here / "run")
    for name in (".metrics.json.tmp", "checkpoints/.last.ckpt.tmp"):
        (here / "run" / name).write_text("half")
    cli.main(["fit", "--ckpt_path", "last", "--run", "run"])
    assert "resume:    run/checkpoints/last.ckpt\n" in capsys.readouterr().out
    assert contents(here / "run") == files


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
