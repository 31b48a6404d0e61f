"""A run and the commands that follow it, as a user types them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from shlex import split
from typing import Any

import cv2
import lightning as L
import numpy as np
import pytest
import torch
import yaml
from forked import forks
from made_runs import QUICK, ROOT, fit, load, rows

import cli
from boltbox.detector.data import demo
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.demo import make_demo

QUIET = ["--trainer.enable_progress_bar", "false", "--report.enabled", "false"]


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, not to be written to; what it printed is in told.txt beside it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    options = (
        f"--trainer.max_epochs 2 --run {run} --autoanchor.enabled true --pictures.enabled true"
    )
    with open(run.with_name("told.txt"), "w") as file, contextlib.redirect_stdout(file):
        fit(small_data, *options.split())
    return run


def test_a_run_lies_in_one_folder(trained: Path) -> None:
    files = {str(p.relative_to(trained)) for p in trained.rglob("*") if p.is_file()}
    assert files == {
        "config.yaml",
        "changed.yaml",
        "machine.json",
        "detections.npz",
        "anchors.json",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
        "metrics.csv",
        "metrics.json",
        *(f"plots/train_batch{k}.jpg" for k in range(3)),
        "plots/val_labels.jpg",
        "plots/val_predictions.jpg",
    }
    table = rows(trained)
    # 24 images in batches of 8: in the warm-up each batch is a step.
    assert [(r["epoch"], r["step"]) for r in table] == [("0", "3"), ("1", "6")]
    for name in (
        "train/box_loss",
        "val/obj_loss",
        "val/P",
        "val/mAP50-95",
        "val/coco/AP",
        "lr/bias",
        "seconds",
    ):
        assert all(r[name] for r in table), name
    figures = json.loads((trained / "metrics.json").read_text())
    best = max(table, key=lambda r: float(r["val/fitness"]))
    assert figures["command"] == "fit"
    assert figures["epoch"] == int(best["epoch"])
    for name in ("P", "R", "mAP50", "mAP50-95", "fitness", "coco/AP", "coco/AP50"):
        assert figures[name] == pytest.approx(float(best[f"val/{name}"]), rel=1e-4, abs=1e-9)
    assert {c["name"] for c in figures["per_class"]} <= {
        "disc",
        "ring",
        "star",
        "triangle",
        "cross",
    }
    for picture in (trained / "plots").iterdir():
        image = cv2.imread(str(picture))
        assert image is not None
        assert image.std() > 10, picture


def test_without_validation(small_data: Path, here: Path, capsys: pytest.CaptureFixture) -> None:
    """It trains to its end, can go on, and names the checkpoint that there is."""
    limits = "--trainer.limit_val_batches 0 --trainer.limit_train_batches 1 --trainer.max_epochs 1"
    fit(small_data, *limits.split(), "--run", "run")
    assert [p.name for p in (here / "run/checkpoints").iterdir()] == ["last.ckpt"]
    switched_off = {"anchors.json", "plots", "report.html"}
    assert not switched_off & {p.name for p in (here / "run").iterdir()}
    cli.main(split("fit --run run --ckpt_path last --trainer.max_epochs 2"))
    assert [r["epoch"] for r in rows(here / "run")] == ["0", "1"]
    assert capsys.readouterr().out.count("saved:     run/checkpoints/last.ckpt\n") == 2


def test_the_end_tells_where_everything_lies(
    trained: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    """The best epoch's table and the files; after a resume that has nothing left to do too."""
    told = trained.with_name("told.txt").read_text()
    assert re.search(
        r"^ *epoch +box .*\n +1/2 .*\n +2/2 .*@\d\nsaved:     .*\n\nclass +objects .*\nall ",
        told,
        re.M,
    )
    assert not re.search("epoch ./2.*/3", told), "QUICK: no progress bar"
    for path in (trained / "checkpoints/best.ckpt", trained / "plots"):
        assert re.search(f": +{path}$", told, re.M)
    shutil.copytree(trained, here / "run")
    cli.main(split("validate --run run --ckpt_path last --report.enabled false"))
    capsys.readouterr()
    cli.main(split("fit --run run --ckpt_path last"))
    assert re.search("^best: +epoch . of 2: ", capsys.readouterr().out, re.M)


def test_what_was_dropped_is_named_in_the_folder(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(small_data.parent, here / "data")
    labels = next(p for p in sorted((here / "data/labels/train").iterdir()) if p.read_text())
    whole = labels.read_text()
    labels.write_text(whole + "0 0.5 0.5 1.5 0.2\n" * 12)
    fit(here / "data" / small_data.name, *split("--trainer.max_epochs 0 --run run"))
    lines = (here / "run/dropped.txt").read_text().splitlines()
    assert len(lines) == 12
    assert lines[0].startswith(
        f"train: {labels}, line {len(whole.splitlines()) + 1}: coordinate above 1"
    )
    told = capsys.readouterr().out
    assert "12 boxes dropped" in told
    assert "... and 2 more, all in dropped.txt" in told


def test_config_yaml_repeats_the_run(trained: Path, here: Path) -> None:
    """config.yaml alone starts the same training again, in a folder of its own."""
    off = split("--pictures.enabled false --trainer.limit_val_batches 0")
    cli.main(["fit", "--config", str(trained / "config.yaml"), *off])
    whole = load(trained / "checkpoints/last.ckpt")["state_dict"]
    found = load(here / "runs/fit-1/checkpoints/last.ckpt")["state_dict"]
    assert found.keys() == whole.keys()
    assert all(torch.equal(v, whole[k]) for k, v in found.items())


def test_checkpoints_hold_plain_types(trained: Path) -> None:
    content = load(trained / "checkpoints/last.ckpt")  # weights_only: fails on anything else
    assert content["hyper_parameters"]["names"] == ["disc", "ring", "star", "triangle", "cross"]
    assert any(k.startswith("ema.") for k in content["state_dict"])
    assert all(v.dtype in (torch.float32, torch.int64) for v in content["state_dict"].values())


def test_validate_gives_the_figures_of_the_fit(
    trained: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    cli.main(["validate", "--ckpt_path", str(trained / "checkpoints/best.ckpt"), *QUIET])
    figures = json.loads((here / "runs/validate-1/metrics.json").read_text())
    row = max(rows(trained), key=lambda r: float(r["val/fitness"]))
    assert figures["command"] == "validate"
    for name in ("P", "R", "mAP50", "mAP50-95", "coco/AP"):
        assert figures[name] == pytest.approx(float(row[f"val/{name}"]), rel=1e-3, abs=1e-6)
    assert re.search(r"^class +objects +P +R +mAP50", capsys.readouterr().out, re.M)


def test_test_uses_the_test_split(trained: Path, small_data: Path, here: Path) -> None:
    content = yaml.safe_load(small_data.read_text()) | {
        "path": str(small_data.parent),
        "test": "images/train",
    }
    (here / "data.yaml").write_text(yaml.safe_dump(content))
    checkpoint = trained / "checkpoints/best.ckpt"
    cli.main([*f"test --ckpt_path {checkpoint} --data.dataset data.yaml".split(), *QUIET])
    figures = json.loads((here / "runs/test-1/metrics.json").read_text())
    assert (figures["command"], figures["split"], figures["images"]) == ("test", "test", 24)


def test_predict_writes_pictures_and_labels(trained: Path, small_data: Path, here: Path) -> None:
    source = here / "pictures"
    shutil.copytree(small_data.parent / "images/val", source / "deep")
    shutil.copy(source / "deep/0000.jpg", source / "0000.jpg")
    cv2.imwrite(str(source / "0000.png"), np.zeros((300, 100, 3), np.uint8))
    (source / "broken.jpg").write_bytes(b"no picture")
    checkpoint = str(trained / "checkpoints/best.ckpt")
    cli.main(["predict", "--ckpt_path", checkpoint, "--source", "pictures", "--conf", "0.001"])
    run = here / "runs/predict-1"
    names = {"0000", "0000_2"} | {f"deep/{i:04d}" for i in range(8)}
    assert {
        str(p.relative_to(run / "labels").with_suffix("")) for p in (run / "labels").rglob("*.txt")
    } == names
    lines = [
        line.split() for p in (run / "labels").rglob("*.txt") for line in p.read_text().splitlines()
    ]
    assert lines
    for c, *numbers in lines:
        assert int(c) < 5
        assert all(0 <= float(x) <= 1 for x in numbers)
        assert len(numbers) == 5
    for path in (run / "images").rglob("*.jpg"):
        name = path.relative_to(run / "images").with_suffix("")
        original = source / {"0000_2": "0000.png"}.get(str(name), f"{name}.jpg")
        assert cv2.imread(str(path)).shape == cv2.imread(str(original)).shape


def test_last_continues_the_most_recent_run_in_place_with_what_was_typed(
    trained: Path, here: Path
) -> None:
    """The new learning rate holds from the first resumed epoch on; so does the new patience of the
    early stop."""
    for name in ("fit-1", "fit-2"):
        shutil.copytree(trained, here / "runs" / name)
    (here / "runs/fit-2/checkpoints/last.ckpt").touch()
    cli.main(split("fit --ckpt_path last --trainer.max_epochs 3 --model.optim.lr0 0.123 --warmup.warmup_epochs 0"
             " --early_stop.patience 7"))  # fmt: skip
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["fit-1", "fit-2"]
    assert rows(here / "runs/fit-1") == rows(trained)
    table = rows(here / "runs/fit-2")
    assert [r["epoch"] for r in table] == ["0", "1", "2"]
    # epoch 2 of 3, linear: (1 - 2 / 3) * (1 - 0.01) + 0.01 = 0.34
    assert float(table[2]["lr/weight"]) == pytest.approx(0.123 * 0.34, rel=1e-4)
    callbacks = load(here / "runs/fit-2/checkpoints/last.ckpt")["callbacks"]
    (stop,) = (state for key, state in callbacks.items() if key.startswith("EarlyStop"))
    assert stop["patience"] == 7


def test_fine_tuning_from_a_checkpoint_of_ours(
    trained: Path, small_data: Path, here: Path, capsys
) -> None:
    content = yaml.safe_load(small_data.read_text())
    content |= {"path": str(small_data.parent), "names": [*"abcdef"], "nc": 6}
    (here / "six.yaml").write_text(yaml.safe_dump(content))
    weights = trained / "checkpoints/best.ckpt"
    fit(here / "six.yaml", *f"--model.start.weights {weights} --trainer.max_epochs 0".split())
    assert (
        "class outputs start from random values, as the classes differ" in capsys.readouterr().out
    )


def test_a_fresh_fit_never_writes_into_an_older_run(
    trained: Path, small_data: Path, capsys: pytest.CaptureFixture
) -> None:
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    with pytest.raises(SystemExit):
        fit(small_data, "--run", str(trained))
    assert "already holds a run: continue it with --ckpt_path last" in capsys.readouterr().err
    assert before == {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}


class Failing(L.Callback):
    def on_train_batch_start(self, *_: Any) -> None:
        raise RuntimeError("failed")


def test_a_fit_that_has_failed_at_once_is_started_again(small_data: Path, here: Path) -> None:
    """By the same line, whatever stopped it."""
    line = ["--run", "again", "--trainer.max_epochs", "1", "--trainer.limit_val_batches", "0"]
    with pytest.raises(RuntimeError, match="failed"):
        fit(small_data, *line, "--trainer.callbacks", "test_cli.Failing")
    assert (here / "again/config.yaml").is_file()
    fit(small_data, *line)
    assert (here / "again/checkpoints/last.ckpt").is_file()


class Stopping(L.Callback):
    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_stopped_while_validating(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    line = "--run run --trainer.max_epochs 2 --trainer.callbacks test_cli.Stopping"
    with pytest.raises(SystemExit) as stop:
        fit(small_data, *line.split())
    assert stop.value.code == 143
    assert "stopped after 1 of 2 epochs; resume with: " in capsys.readouterr().out


def test_a_demo_run_keeps_its_sizes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its precision, which depends on the machine: here on a processor that computes in
    bfloat16."""
    monkeypatch.setattr(demo, "make_demo", lambda root: make_demo(root, train=8, val=4))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    small = "--model.network.width_multiple 0.125 --model.network.depth_multiple 0.1 --model.network.levels [5] --doctor.enabled false --data.workers 0 --trainer.accelerator cpu"
    small += " --pictures.enabled false --report.enabled false --autoanchor.enabled false"
    cli.main(f"fit --config {ROOT}/configs/yolo.yaml --trainer.max_epochs 1 {small}".split())
    told = capsys.readouterr().out
    assert "data:      demo (" in told
    assert "precision: bf16-mixed (16-mixed needs a GPU)" in told
    sizes: list[Any] = []
    seen = DetectionData.setup
    monkeypatch.setattr(
        DetectionData,
        "setup",
        lambda self, stage: (sizes.append((stage, self.image_size)), seen(self, stage)),
    )
    cli.main(["validate", "--ckpt_path", "last", *QUIET])
    assert "precision: 32-true (16-mixed needs a GPU)" in capsys.readouterr().out
    cli.main(split("fit --ckpt_path last --trainer.precision 32-true"))  # nothing left to do
    assert "precision: " not in capsys.readouterr().out
    assert sizes == [("validate", 128), ("fit", 128)]


def test_classes_of_checkpoint_and_data_must_agree(
    trained: Path, small_data: Path, here: Path, capsys
) -> None:
    content = yaml.safe_load(small_data.read_text()) | {
        "path": str(small_data.parent),
        "names": [*"abcde"],
    }
    (here / "other.yaml").write_text(yaml.safe_dump(content))
    checkpoint = trained / "checkpoints/best.ckpt"
    with pytest.raises(SystemExit):
        cli.main(f"validate --ckpt_path {checkpoint} --data.dataset other.yaml".split())
    assert "the checkpoint knows the classes ['disc'" in capsys.readouterr().err


def test_two_devices(small_data: Path, here: Path) -> None:
    """Two processes on the CPU, started by Lightning: one run folder, one row an epoch, figures of
    all eight images; a batch is 16 images of both."""
    line = f"fit --config {ROOT}/configs/yolo.yaml --data.dataset {small_data} --trainer.accelerator cpu"
    words = [
        *line.split(),
        *QUICK,
        *split("--trainer.devices 2 --trainer.max_epochs 1 --data.batch_size auto"),
    ]
    command = [sys.executable, str(ROOT / "cli.py"), *words]
    with forks():
        subprocess.run(command, check=True, timeout=240, capture_output=True)
    assert [p.name for p in (here / "runs").iterdir()] == ["fit-1"]
    assert [(r["epoch"], r["step"]) for r in rows(here / "runs/fit-1")] == [("0", "2")]
    assert json.loads((here / "runs/fit-1/metrics.json").read_text())["images"] == 8
