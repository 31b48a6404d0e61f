"""Whose folder a run writes into: its own, alone, and nothing that is not a run's."""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import lightning as L
import pytest
from lightning.pytorch.loggers import CSVLogger
from made_datasets import lay_out
from made_runs import SMALL, contents, load, read, train, type_line, until
from ranks import together

from boltbox.callbacks import recipe
from boltbox.detector.checkpoint.runs import claim, locked, new_run
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.report.video_file import VideoFile
from boltbox.detector.system.errors import InputError

TOGETHER = 4
NARROW = NetworkOptions(width_multiple=0.125, depth_multiple=0.1, levels=[5])


class Where(L.Callback):
    def on_fit_start(self, trainer, pl_module):
        Path(f"rank{trainer.global_rank}").write_text(trainer.default_root_dir)


class Late(CSVLogger):
    """Starts when the run has its folder."""

    def __init__(self, save_dir):
        super().__init__(save_dir)
        assert read(Path(save_dir, "machine.json"))["command"] == "fit"


def small(data, options=""):
    """A fit of a batch, in a folder of its own choice."""
    one = "--trainer.max_epochs 1 --trainer.limit_train_batches 1"
    return f"fit {SMALL} --data.dataset {data} --data.batch_size 8 {one} {options}"


def reserve(number, begin):
    """In a process of its own: a folder, from the moment on that the pipe is closed."""
    code = 1
    try:
        os.read(begin, 1)
        run = new_run("fit")
        Path(f"chosen-{number}").touch()
        # before any of them writes
        until(lambda: len(list(Path().glob("chosen-*"))) == TOGETHER, "the choice of the others")
        with locked(run, "fit"):
            (run / "config.yaml").write_text(str(number))
        code = 0
    finally:
        os._exit(code)


def test_processes_that_start_together_have_folders_of_their_own(here):
    (here / "runs/fit-²").mkdir(parents=True)
    begin, now = os.pipe()
    children = []
    for number in range(TOGETHER):
        child = os.fork()
        if child == 0:
            os.close(now)
            reserve(number, begin)
        children.append(child)
    os.close(now)
    os.close(begin)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * TOGETHER
    written = [(here / f"runs/fit-{k + 1}/config.yaml").read_text() for k in range(TOGETHER)]
    assert sorted(written) == list("0123")


def hold(worker):
    """In a process of its own, which has a child, like a worker of a loader."""
    with locked(Path("run"), "fit"):
        if child := os.fork():
            worker.value = child
        time.sleep(600)


def test_a_second_process_in_one_run_is_refused(small_data, here, refused):
    """Until the first one is gone, however that ends; not until its children are."""
    worker = multiprocessing.Value("i", 0)
    first = multiprocessing.get_context("fork").Process(target=hold, args=(worker,))
    first.start()
    try:
        until(lambda: worker.value, "the lock", lambda: first.exitcode)
        told = refused(small(small_data, "--run run"))
        assert f"run run is in use by process {first.pid} on {socket.gethostname()}" in told
    finally:
        first.kill()
        first.join()
    try:
        with locked(Path("run"), "fit"):
            assert Path("run/.lock").is_file()
    finally:
        os.kill(worker.value, signal.SIGKILL)
    assert not Path("run/.lock").exists()


def test_processes_that_torchrun_has_started_are_one_run(small_data, here):
    """Without --run: those after the first learn its folder."""
    options = "--trainer.devices 2 --trainer.callbacks test_run_folders.Where"
    (here / "runs/fit-1").mkdir(parents=True)
    together(type_line, small(small_data, options))
    assert sorted(os.listdir("runs")) == ["fit-1", "fit-2"]
    assert {(here / f"rank{rank}").read_text() for rank in (0, 1)} == {"runs/fit-2"}


def test_a_file_system_without_locks(here, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(Path("run"), "fit"):
        assert Path("run/machine.json").is_file()


def test_folders_that_take_no_files(trained, small_data, here, refused):
    """The last is a folder of runs that leads nowhere."""
    shutil.copytree(trained, here / "other")
    (here / "runs").symlink_to("unmounted")
    for line, folder in {
        f"fit --data.dataset {small_data} --run /proc/none": "/proc/none",
        f"doctor --data.dataset {small_data} --run /proc/none": "/proc/none",
        f"compare {trained} other --run /proc/none": "/proc/none",
        f"fit --data.dataset {small_data}": "runs/fit-1",
    }.items():
        told = refused(line)
        assert told.startswith(f"error: run {folder}: ")
        assert "--run" in told


def test_what_a_resume_may_change(small_data, here, refused):
    """Not the optimizer, also where the new one has the same groups, and the run can be resumed
    after the refusal; the average can be left out. Layers are frozen, but not all."""
    type_line(small(small_data, "--run run"))
    again = "fit --ckpt_path last --run run --trainer.max_epochs 2"
    told = refused(f"{again} --model.optim.optimizer AdamW")
    assert "optimizer state is of another optimizer" in told
    type_line(f"{again} --ema.enabled false")
    state = load(here / "run/checkpoints/last.ckpt")["state_dict"]
    for name in state:
        assert not name.startswith("ema.")
    assert "holds no moving average" in refused(f"{again} --ema.enabled true")
    told = refused(small(small_data, "--model.start.freeze 11"))
    assert "model.start.freeze 11: nothing is left to train" in told


def test_links_are_not_written_through(small_data, here):
    """Where a file is written beside, and moved, a link of that name waits."""
    victim = here / "victim"
    victim.write_text("untouched")
    names = "config.yaml", "machine.json", "metrics.csv", "checkpoints/last.ckpt"
    claim(here / "run", "fit")
    for name in names:
        beside = here / "run" / Path(name).with_name(f".{Path(name).name}.tmp")
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.symlink_to(victim)
    type_line(small(small_data, "--run run"))
    assert victim.read_text() == "untouched"
    assert all((here / "run" / name).is_file() for name in names)
    assert not list((here / "run").rglob("*.tmp"))
    (here / "run/.lock").symlink_to(victim)
    with (
        pytest.raises(InputError, match=r"/run/\.lock cannot be opened"),
        locked(Path("run"), "fit"),
    ):
        pass


LINES = [
    "fit --data.dataset {data}",
    "validate --ckpt_path {run}/checkpoints/last.ckpt",
    "evolve --data.dataset {data}",
    "compare {run} ../other",
    "doctor --data.dataset {data}",
    "predict --ckpt_path {run}/checkpoints/last.ckpt --source {data}/images/val --labels false"
    " --device cpu",
]


@pytest.mark.parametrize("line", LINES)
def test_a_folder_of_something_else_is_left_alone(line, trained, small_data, here, refused):
    """A project, whatever its files are called. A command marks a folder of its own, so that it may
    write there again."""
    mine = {"config.yaml": "mine", "machine.json": "{}", "src/metrics.json": "{}"}
    lay_out(here / "project", mine)
    shutil.copytree(trained, here / "other")
    os.chdir("project")
    given = line.format(data=small_data.parent, run=trained)
    assert "run .: not a run folder (" in refused(f"{given} --run .")
    left = contents(here / "project")
    assert left.keys() == mine.keys()
    for text in left.values():
        assert text.decode() in mine.values()
    if line in LINES[-2:]:
        for _ in range(2):
            with contextlib.suppress(SystemExit):  # of a doctor who finds something
                type_line(f"{given} --run ../out")
            assert len(os.listdir("../out")) > 1
            command = read(here / "out/machine.json")["command"]
            assert command == line.split()[0]


def test_no_report_and_no_recipe_in_a_folder_of_something_else(here, refused):
    lay_out(here, {"config.yaml": "mine", "machine.json": "{}"})
    assert "run .: not a run folder (" in refused("report .")
    with pytest.raises(InputError, match=r"^run \.: not a run folder \("):
        recipe(run=".")
    assert sorted(os.listdir()) == ["config.yaml", "machine.json"]


def test_a_finished_run_is_left_alone(trained, small_data, here, capsys):
    """A resume trains nothing, and the run was not started anew. What a kill has left goes. What is
    done with its checkpoint is elsewhere."""
    shutil.copytree(trained, here / "run")
    files = contents(here / "run")
    for name in (".metrics.json.tmp", "checkpoints/.last.ckpt.tmp"):
        (here / "run" / name).write_text("half")
    type_line("fit --ckpt_path last --run run")
    assert "resume:    run/checkpoints/last.ckpt\n" in capsys.readouterr().out
    source = small_data.parent / "images/val"
    type_line(f"predict --ckpt_path best --run run --device cpu --source {source}")
    assert os.listdir("runs/predict-1")
    assert contents(here / "run") == files


def test_what_a_killed_start_leaves_is_no_hindrance(small_data, here):
    """And loggers start after the folder is marked."""
    (here / "run/plots").mkdir(parents=True)
    for name in (".lock", ".machine.json.tmp"):
        (here / "run" / name).write_text("half")
    own = "--run run --trust_parts true --trainer.logger test_run_folders.Late"
    type_line(small(small_data, f"{own} --trainer.logger.save_dir run"))
    files = set(os.listdir(here / "run"))
    assert {"machine.json", "config.yaml", "checkpoints"} <= files
    assert not {".lock", ".machine.json.tmp"} & files


def test_links_beside_pictures_and_videos(trained, small_data, here):
    victim = here / "victim"
    image = min((small_data.parent / "images/val").iterdir())
    victim.write_text("untouched")
    claim(here / "out", "predict")
    (here / "out/images").mkdir()
    (here / f"out/images/.{image.stem}.jpg.tmp").symlink_to(victim)
    line = f"predict --ckpt_path {trained}/checkpoints/last.ckpt --source {image} --run out"
    type_line(f"{line} --device cpu")
    assert os.listdir("out/images") == [f"{image.stem}.jpg"]
    (here / ".film.mp4.tmp.mp4").symlink_to(victim)
    VideoFile(here / "film.mp4", 5, (64, 64)).close()
    assert victim.read_text() == "untouched"


def test_a_dry_run_saves_no_checkpoint(small_data, here):
    train(small_data, "run", "--trainer.fast_dev_run true")
    assert "checkpoints" not in os.listdir("run")
