"""A run and the commands that follow it, as a user types them."""

import logging
import os
import shutil
from functools import partial
from pathlib import Path

import cv2
import lightning as L
import pytest
import torch
import yaml
from made_networks import same
from made_runs import SMALL, column, load, read, rows, train, type_line

from boltbox.detector.data import demo
from boltbox.detector.data.demo import make_demo

QUIET = "--trainer.enable_progress_bar false --report.enabled false"
SHORT = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 0"


@pytest.fixture(scope="module")
def trained(small_data, tmp_path_factory):
    """A run of two epochs, not to be written to."""
    run = tmp_path_factory.mktemp("trained") / "run"
    options = "--trainer.max_epochs 2 --autoanchor.enabled true --pictures.enabled true"
    train(small_data, run, options)
    return run


def test_a_run_lies_in_one_folder(trained):
    files = {str(path.relative_to(trained)) for path in trained.rglob("*.*") if path.is_file()}
    expected = "config.yaml changed.yaml machine.json detections.npz metrics.csv metrics.json"
    expected += " plots/val_labels.jpg plots/val_predictions.jpg plots/train_batch0.jpg"
    expected += " plots/train_batch1.jpg plots/train_batch2.jpg"
    expected += " checkpoints/best.ckpt checkpoints/last.ckpt checkpoints/previous.ckpt"
    assert files - {"anchors.json"} == set(expected.split())
    table = rows(trained)
    # 24 images in batches of 8: in the warm-up each batch is a step
    assert [(row["epoch"], row["step"]) for row in table] == [("0", "3"), ("1", "6")]
    for name in ("train/box_loss", "val/obj_loss", "lr/bias", "seconds"):
        for row in table:
            assert row[name], name
    metrics = read(trained / "metrics.json")
    best = max(table, key=lambda row: float(row["val/fitness"]))
    assert (metrics["command"], metrics["epoch"]) == ("fit", int(best["epoch"]))
    for name in ("P", "R", "mAP50", "mAP50-95", "fitness", "coco/AP", "coco/AP50"):
        assert metrics[name] == pytest.approx(float(best[f"val/{name}"]), rel=1e-4, abs=1e-9)
    for picture in (trained / "plots").iterdir():
        assert cv2.imread(str(picture)).std() > 10, picture


class Failing(L.Callback):
    def on_train_batch_start(self, *_):
        raise RuntimeError("failed")


def test_without_validation(small_data, here):
    """It trains to its end, after a start that failed too, and can go on. What was left out of the
    labels is in dropped.txt."""
    shutil.copytree(small_data.parent, here / "data")
    labels = min((here / "data/labels/train").iterdir())
    lines = len(labels.read_text().splitlines())
    with labels.open("a") as file:
        file.write("0 0.5 0.5 1.5 0.2\n" * 12)
    data = here / "data" / small_data.name
    with pytest.raises(RuntimeError, match="failed"):
        train(data, "run", f"{SHORT} --trainer.callbacks test_cli.Failing")
    assert (here / "run/config.yaml").is_file()
    train(data, "run", SHORT)
    assert os.listdir("run/checkpoints") == ["last.ckpt"]
    assert not {"anchors.json", "plots", "report.html"}.intersection(os.listdir("run"))
    dropped = (here / "run/dropped.txt").read_text().splitlines()
    assert len(dropped) == 12
    assert dropped[0].startswith(f"train: {labels}, line {lines + 1}: ")
    type_line("fit --run run --ckpt_path last --trainer.max_epochs 2")
    assert column(rows(here / "run"), "epoch") == ["0", "1"]


def test_config_yaml_repeats_the_run(trained, here):
    """config.yaml alone starts the same training again, in a folder of its own."""
    off = "--pictures.enabled false --trainer.limit_val_batches 0"
    assert read(trained / "config.yaml")["trainer"]["num_sanity_val_steps"] == 0
    type_line(f"fit --config {trained}/config.yaml {off}")
    whole = load(trained / "checkpoints/last.ckpt")["state_dict"]
    assert same(load(here / "runs/fit-1/checkpoints/last.ckpt")["state_dict"], whole)


def test_validate_gives_the_figures_of_the_fit(trained, here):
    type_line(f"validate --ckpt_path {trained}/checkpoints/best.ckpt {QUIET}")
    metrics = read(here / "runs/validate-1/metrics.json")
    row = max(rows(trained), key=lambda row: float(row["val/fitness"]))
    assert metrics["command"] == "validate"
    for name in ("P", "R", "mAP50", "mAP50-95", "coco/AP"):
        assert metrics[name] == pytest.approx(float(row[f"val/{name}"]), rel=1e-3, abs=1e-6)


def test_test_uses_the_test_split(trained, small_data, here, refused, capfd):
    """A confidence that cuts the curves is named. Other classes than the checkpoint's are refused,
    and a fresh fit in the folder of a run."""
    content = read(small_data)
    content |= {"path": str(small_data.parent), "test": "images/train"}
    (here / "data.yaml").write_text(yaml.safe_dump(content))
    line = f"test --ckpt_path {trained}/checkpoints/best.ckpt --data.dataset data.yaml"
    type_line(f"{line} --conf 0.25 {QUIET}")
    assert "detections below 0.25 are missing: mAP" in capfd.readouterr().out
    metrics = read(here / "runs/test-1/metrics.json")
    assert (metrics["command"], metrics["split"], metrics["images"]) == ("test", "test", 24)
    (here / "data.yaml").write_text(yaml.safe_dump(content | {"names": list("abcde")}))
    assert "['disc'" in refused(line)
    assert str(trained) in refused(f"fit --data.dataset {small_data} --run {trained}")


def test_last_continues_the_most_recent_run_in_place_with_what_was_typed(trained, here):
    """The new learning rate holds from the first resumed epoch on; so does the new patience of the
    early stop."""
    for name in ("fit-1", "fit-2"):
        shutil.copytree(trained, here / "runs" / name)
    (here / "runs/fit-2/checkpoints/last.ckpt").touch()
    line = "fit --ckpt_path last --trainer.max_epochs 3 --model.optim.lr0 0.123"
    type_line(f"{line} --warmup.warmup_epochs 0 --early_stop.patience 7")
    assert sorted(os.listdir("runs")) == ["fit-1", "fit-2"]
    assert rows(here / "runs/fit-1") == rows(trained)
    table = rows(here / "runs/fit-2")
    assert column(table, "epoch") == ["0", "1", "2"]
    # epoch 2 of 3, linear: (1 - 2 / 3) * (1 - 0.01) + 0.01 = 0.34
    assert float(table[2]["lr/weight"]) == pytest.approx(0.123 * 0.34, rel=1e-4)
    callbacks = load(here / "runs/fit-2/checkpoints/last.ckpt")["callbacks"]
    (stop,) = (state for key, state in callbacks.items() if key.startswith("EarlyStop"))
    assert stop["patience"] == 7


def test_a_demo_run_keeps_its_sizes(here, monkeypatch, capsys):
    """And its precision, which depends on the machine: here on a processor that computes in
    bfloat16."""
    monkeypatch.setattr(demo, "make_demo", partial(make_demo, train=2, val=2))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    small = SMALL.split(maxsplit=2)[2].replace("--trainer.precision 32-true", "")
    type_line(f"fit --trainer.max_epochs 1 {small}")
    assert "precision: bf16-mixed" in capsys.readouterr().out
    type_line(f"validate --ckpt_path last {QUIET}")
    assert "precision: 32-true" in capsys.readouterr().out
    for run in ("fit", "validate"):
        config = read(here / f"runs/{run}-1/config.yaml")
        assert config["data"]["image_size"] == 128


def test_logger_profiler_and_folder(small_data, here, caplog):
    """The folder is that of the run, with Lightning's lightning_logs in it."""
    lightning = logging.getLogger("lightning.pytorch")
    lightning.addHandler(caplog.handler)
    common = "--trainer.logger CSVLogger --trainer.profiler simple --trainer.devices 1"
    common += " --trainer.default_root_dir mine"
    fit = "--trainer.log_every_n_steps 1 --trainer.limit_train_batches 2 --trainer.max_epochs 1"
    fit += f" --trainer.max_time 00:01:00:00 --data.dataset {small_data} {SMALL}"
    try:
        type_line(f"fit {common} {fit}")
        assert "FIT Profiler Report" in caplog.text
        type_line(f"validate --ckpt_path last {common}")
        assert "VALIDATE Profiler Report" in caplog.text
    finally:
        lightning.removeHandler(caplog.handler)
    assert Path("mine/checkpoints/last.ckpt").is_file()
    logs = Path("mine/lightning_logs/version_0")
    table = rows(logs)
    assert len([row for row in table if row["lr/bias"]]) == 2
    assert len([row for row in table if row["val/mAP50"]]) == 1
    options = read(logs / "hparams.yaml")
    assert options["data"]["image_size"] == 64
    assert "trainer.logger" not in read("mine/changed.yaml"), "its class_path and init_args are"
    assert Path("runs/validate-1/lightning_logs/version_0/metrics.csv").is_file()
