"""Mistakes in a command line or in the files that it names: messages.yaml lists them. One sentence
names the option or the file; the exit code is 2, and nothing is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from huggingface_hub import constants
from made_datasets import as_yolo, lay_out
from made_runs import ROOT, SMALL, contents, train
from ranks import together

from boltbox.callbacks import Checkpoints, recipe
from boltbox.detector.system.errors import InputError

LONG = {
    "<long>": "a" * 300,  # a file system takes 255
    "<beyond>": "b/" * 3000 + "c",  # the system takes 4096 in all
    "<huge>": "1" + "0" * 400,
    "<deep>": "[" * 3000 + "]" * 3000,
}


def read_table():
    text = Path(__file__).with_name("messages.yaml").read_text()
    for name, value in LONG.items():
        text = text.replace(name, value)
    return yaml.safe_load(text)


TABLE = read_table()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("messages")
    as_yolo(root / "yolo")
    lay_out(root, TABLE["files"])
    (root / "latin.yaml").write_bytes(b"train: yolo/images/train\nnames: [caf\xe9, dog]\n")
    os.mkfifo(root / "pipe")
    return root


def left(folder):
    """All that is there; machine.json of a run tells when it was used last."""
    files = contents(folder)
    for run in ("broken_study", "other_run"):
        del files[f"{run}/machine.json"]
    return sorted(folder.rglob("*")), files


def test_what_is_wrong_is_said_before_slow_imports(folder):
    """As for the list of commands."""
    lines = ["--help"] + [line for line, _ in TABLE["fast"]]
    check = "import sys, cli, contextlib\n"
    check += f"for line in {lines}:\n"
    check += " with contextlib.suppress(SystemExit): cli.main(line.split())\n"
    check += "slow = {'torch', 'lightning', 'numpy', 'cv2', 'optuna', 'jsonargparse'}\n"
    check += "assert not slow & sys.modules.keys()\n"
    line = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{check}"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    for error, (_, expected) in zip(done.stderr.splitlines(), TABLE["fast"], strict=True):
        assert error.startswith("error: ")
        assert expected in error


@pytest.mark.parametrize(
    "row", TABLE["slow"] + TABLE["gpu"], ids=lambda row: row[0].replace("/", ".")[:60]
)
def test_one_sentence(row, folder, small_data, refused, monkeypatch):
    line, *words = row
    monkeypatch.chdir(folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if row in TABLE["gpu"]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = left(folder)
    told = refused(line.replace("<data>", f"--data.dataset {small_data} {SMALL}"))
    assert [word for word in words if word not in told] == [], told
    assert len(told) < 2500
    assert not re.search(r"typing|<class|Union|Subtypes", told)
    assert left(folder) == before


def test_process_substitution_is_a_config_still(folder, refused, monkeypatch):
    """`--config <(...)`: a pipe that the shell writes into."""
    monkeypatch.chdir(folder)
    reader, writer = os.pipe()
    os.write(writer, b"data: {image_size: -7}\n")
    os.close(writer)
    assert "-7" in refused(f"fit --data.dataset yolo --config /dev/fd/{reader}")
    os.close(reader)


@pytest.mark.parametrize(
    "option",
    [{"max_steps": 3}, {"accumulate_grad_batches": 4}, {"overfit_batches": 1}, {"precision": "64-true"}, {"precision": "16-true"}, {"check_val_every_n_epoch": None}, {"limit_train_batches": 0}, {"enable_checkpointing": False}, {"barebones": True}],
)  # fmt: skip
def test_the_recipe_of_a_script_refuses_the_same(option):
    with pytest.raises(InputError, match=f"trainer.{next(iter(option))}"):
        recipe(**option)


def test_there_is_no_gpu(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = "fit --data.dataset demo --trainer.accelerator gpu"
    assert "trainer.accelerator gpu" in refused(line)


def test_best_ckpt_needs_whole_epochs():
    trainer = L.Trainer(val_check_interval="00:00:01:00", accelerator="cpu")
    with pytest.raises(InputError, match="val_check_interval"):
        Checkpoints().setup(trainer, None, "fit")


def test_a_sentence_of_lightnings_after_the_start(small_data, here, refused):
    line = f"fit --data.dataset {small_data} {SMALL} --trainer.val_check_interval 99"
    assert "`val_check_interval` (99)" in refused(line)


def test_an_error_of_all_processes_is_printed_once(small_data, here, capfd):
    options = "--trainer.devices 2 --data.batch_size 3"
    with pytest.raises(Exception, match="terminated with exit code 2"):
        together(train, small_data, here / "run", options)
    assert capfd.readouterr().err.count("error: data.batch_size 3") == 1
    assert not (here / "run").exists()
