"""What goes wrong in a command: the user's errors, told in one sentence, and a loss that is not
finite."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import forks
from made_runs import QUICK, fit

import boltbox.callbacks
import cli

ERRORS = {
    "unknown option": (["--model.wdth", "3"], "did you mean 'model.network.width_multiple'"),
    "abbreviation": (["--trainer.max_epoch", "3"], "did you mean 'trainer.max_epochs'"),
    "line of YOLOv5": (["--epochs", "3"], "--trainer.max_epochs 1 --trainer.max_epochs 3"),
    "wrong type": (["--data.batch_size", "many"], "data.batch_size"),
    "no such data": (["--data.dataset", "nowhere.yaml"], "nowhere.yaml: no such file"),
    "no such GPU": (["--trainer.accelerator", "gpu"], "No supported gpu backend"),
    "GPUs by number": (
        ["--trainer.accelerator", "cpu", "--trainer.devices", "0,1"],
        "trainer.devices 0,1: on a CPU this is a number of processes; give --trainer.accelerator"
        " cpu --trainer.devices 2",
    ),
    "cpu as a device": (
        ["--trainer.devices", "cpu"],
        "give --trainer.accelerator cpu --trainer.devices 1",
    ),
    "a callback's argument": (
        ["--trainer.callbacks+=EarlyStopping"],
        "trainer.callbacks: the following arguments are required: monitor",
    ),
    "steps": (["--trainer.max_steps", "3"], "max_steps 3: schedule and warm-up go by epochs"),
    "accumulation": (["--trainer.accumulate_grad_batches", "4"], "model.optim.nominal_batch_size"),
    "the same batches": (["--trainer.overfit_batches", "2"], "a data.yaml whose train has few"),
    "validations by the clock": (
        ["--trainer.val_check_interval", "00:00:10:00"],
        "give a share of an epoch, like 0.5",
    ),
    "validations by batches of all epochs": (
        ["--trainer.check_val_every_n_epoch", "null"],
        "give a share of an epoch, like 0.5",
    ),
    "double precision": (["--trainer.precision", "64-true"], "images are float32; give 32-true"),
    "no such size": (["--model.network.size", "xx"], "model.network.size 'xx' is not known"),
    "no such weights": (
        ["--model.start.weights", "nowhere.pt"],
        "nowhere.pt: no such weights file",
    ),
    "no such layer": (["--model.start.freeze", "99"], "model.start.freeze 99"),
    "no checkpoint": (["--ckpt_path", "last"], "no checkpoint in runs/fit-*/checkpoints"),
    "no such transform": (
        ["--data.augment.albumentations", "[{Blurr: {}}]"],
        "did you mean 'Blur'",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_sentence(
    case: str, small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    if torch.cuda.is_available() and case == "no such GPU":
        return
    options, wanted = ERRORS[case]
    with pytest.raises(SystemExit) as leaving:
        fit(small_data, "--trainer.max_epochs", "1", *options)
    told = capsys.readouterr().err.strip()
    assert leaving.value.code == 2
    assert wanted in told
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1
    assert not (here / "runs").exists()


def test_batch_that_does_not_divide_by_the_devices(small_data: Path, here: Path) -> None:
    """Found in a process that launches others: all of them end."""
    options = ["--data.dataset", str(small_data), *QUICK, "--trainer.accelerator", "cpu"]
    options += ["--data.batch_size", "3"]
    command = [sys.executable, cli.__file__, "fit", *options, "--trainer.devices", "2"]
    with forks():
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "data.batch_size 3 does not divide by 2 devices; nearest: 2 or 4" in done.stderr
    assert not (here / "runs").exists()


def test_wrong_class_number_and_empty_sets(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    content = yaml.safe_load(small_data.read_text()) | {
        "path": str(small_data.parent),
        "names": ["one"],
        "nc": 1,
    }
    (here / "few.yaml").write_text(yaml.safe_dump(content))
    (here / "empty/images").mkdir(parents=True)
    (here / "empty.yaml").write_text("path: empty\ntrain: images\nval: images\nnames: [a]\n")
    shutil.copytree(small_data.parent / "images/val", here / "unlabelled/images")
    (here / "unlabelled.yaml").write_text(
        "path: unlabelled\ntrain: images\nval: images\nnames: [a]\n"
    )
    for data, wanted in {
        "few.yaml": r"\d+\.txt: line 1 is of class \d",
        "empty.yaml": "no usable box in train",
        "unlabelled.yaml": "no usable box in train",
    }.items():
        with pytest.raises(SystemExit):
            fit(here / data, "--trainer.max_epochs", "1")
        assert re.search(wanted, capsys.readouterr().err)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """(epoch, batch) of training batches whose images become NaN, each once."""
    where: set[tuple[int, int]] = set()
    before = boltbox.callbacks.Warmup.on_train_batch_start

    def poisoned(self: Any, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) in where:
            where.remove((trainer.current_epoch, batch_idx))
            batch.images.fill_(torch.nan)
        before(self, trainer, module, batch, batch_idx)

    monkeypatch.setattr(boltbox.callbacks.Warmup, "on_train_batch_start", poisoned)
    return where


def test_a_loss_that_is_not_finite(
    poison: set[tuple[int, int]],
    small_data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The report names the images."""
    poison.add((1, 1))
    own = (
        "--run run --trainer.max_epochs 3 --trainer.limit_train_batches 2 --warmup.warmup_epochs 0"
    )
    with pytest.raises(SystemExit) as leaving:
        fit(small_data, *own.split())
    assert leaving.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("error: non-finite loss in epoch 1, batch 1")
    assert len(told.strip().splitlines()) == 1
    report = json.loads((here / "run/checkpoints/incident-1-1.json").read_text())
    assert report["kind"] == "non-finite loss"
    assert len(report["files"]) == 8
    assert all(Path(f).is_file() for f in report["files"])
    assert not poison
