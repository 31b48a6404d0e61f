"""What a command has written is on the disk when it ends, and a checkpoint once it is saved.
benchmarks/power_loss.py is the long version."""

import contextlib
import shutil
from pathlib import Path

import label_layouts
import numpy as np
import pytest
from made_predictions import checkpoint_file  # noqa: F401
from made_runs import SMALL, contents, type_line

from benchmarks.power_loss import QUICK, train, trial
from benchmarks.recorded_disk import RecordedDisk
from benchmarks.resume_fuzz import command
from boltbox.detector.report.video_file import VideoFile


def fit(data, checkpoint):
    more = "--trainer.max_epochs 2 --report.enabled true --pictures.enabled true"
    return f"fit {SMALL} --data.dataset {data} --data.batch_size 8 --run disk/new/run {more}"


def repair(data, checkpoint):
    source = label_layouts.LAYOUTS["labelimg"].write(Path("source"))
    return f"doctor --data.dataset {source} --fix disk/new/fixed --run run"


def convert(data, checkpoint):
    return f"convert {label_layouts.CONVERTED['labelme'].write(Path('source'))} --out disk/new/coco"


def predict(data, checkpoint):
    """On images and a video."""
    shutil.copytree(data.parent / "images/val", "source")
    film = VideoFile(Path("source/film.mp4"), 10, (64, 64))
    film.write(np.zeros((64, 64, 3), np.uint8))
    film.close()
    more = "--json true --csv true --crops true --workers 0 --device cpu --conf 0.0005 --max_det 5"
    return f"predict --ckpt_path {checkpoint} --source source --run disk/new/run {more}"


def strip(data, checkpoint):
    return f"strip {checkpoint} --out disk/new/small.ckpt"


def content(folder):
    """By path. A lock that is left has no holder."""
    found = contents(folder)
    found.pop("new/run/.lock", None)
    return found


@pytest.mark.parametrize("line", [fit, repair, convert, predict, strip])
def test_what_is_written_is_on_the_disk(line, small_data, checkpoint, here):
    """When the command ends; a checkpoint as soon as it is in its place, before the next one."""
    operations = []
    words = line(small_data, checkpoint)
    Path("disk").mkdir()
    disk = RecordedDisk(here / "disk", lambda number, operation: operations.append(operation))
    with disk.recording(), contextlib.suppress(SystemExit):
        type_line(words)
    disk.rebuild(here / "left")
    assert content(here / "disk")
    assert content(here / "left") == content(here / "disk")

    folder = "disk/new/run/checkpoints"
    of_checkpoints = [operation for operation in operations if folder in operation]
    moves = [k for k, operation in enumerate(of_checkpoints) if ".tmp " in operation]
    assert bool(moves) == (line is fit)
    for k in moves:
        assert of_checkpoints[k + 1].startswith("fsync")
        assert of_checkpoints[k + 1].endswith(folder)


def test_a_training_after_power_cuts(small_data, tmp_path):
    (tmp_path / "disk").mkdir()
    short = f"{QUICK} --trainer.max_epochs 2".split()
    line = command(small_data, tmp_path / "disk/run", 0, 1, more=short)[2:]
    code, operations = train(tmp_path, line)
    assert code == 0, (tmp_path / "log").read_text()
    (tmp_path / "disk").rename(tmp_path / "reference")
    cuts, problem = trial(tmp_path, line, operations, "1", tmp_path / "reference/run")
    assert cuts
    assert not problem
