"""What W&B, TensorBoard and MLflow hold after a run, read back from their files. No account, no
network."""

import json
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import wandb
from jsonargparse import Namespace
from lightning_utilities.core.imports import RequirementCache
from made_runs import ROOT, column, read, small_fit, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import read_history, read_records

from boltbox.callbacks.dashboard import is_due
from boltbox.detector.loggers.placement import place_loggers

NAMES = ["disc", "ring", "star", "triangle", "cross"]
LOGGERS = """
trainer:
  logger:
  - class_path: lightning.pytorch.loggers.WandbLogger
    init_args: {project: test, tags: [a, b], notes: a note}
  - class_path: lightning.pytorch.loggers.TensorBoardLogger
    init_args: {save_dir: "", name: "", version: tensorboard}
"""


class Run:
    """A run of one epoch that was resumed for a second one."""

    def __init__(self, folder):
        self.folder = folder
        self.files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        self.rows = []
        for file in self.files:
            self.rows += column(read_history(file), 1)
        self.events = EventAccumulator(str(folder / "tensorboard"), {"images": 0, "tensors": 0})
        self.events.Reload()

    def records(self, kind):
        found = []
        for file in self.files:
            for record in read_records(file):
                if record.WhichOneof("record_type") == kind:
                    found.append(getattr(record, kind))
        return found

    def with_name(self, name):
        return [values for values in self.rows if name in values]

    def media(self, path):
        return next(self.folder.glob(f"wandb/offline-run-*/files/{path}"))


def ended():
    """As at the end of a process. `finish` alone does not wait until the file is written."""
    wandb.finish()
    wandb.teardown()


@pytest.fixture(scope="module")
def run(small_data, tmp_path_factory):
    here = tmp_path_factory.mktemp("dashboard")
    (here / "loggers.yaml").write_text(LOGGERS)
    more = f"--config {here}/loggers.yaml --trainer.log_every_n_steps 1 --pictures.enabled true --trainer.limit_train_batches 2"
    settings = {"MODE": "offline", "SILENT": "true", "DATA_DIR": here, "CACHE_DIR": here / "cache"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"WANDB_{name}", str(value))
        patch.setattr("boltbox.detector.report.drawing.CONF", 0.001)
        patch.delenv("BOLTBOX_RUN", raising=False)
        train(small_data, here / "first", f"{more} --trainer.max_epochs 1")
        ended()
        train(small_data, here / "first", f"{more} --trainer.max_epochs 2 --ckpt_path last")
        ended()
        yield Run(here / "first")


def test_one_wandb_run(run):
    """Its name and configuration; nothing is lost or doubled by the resume."""
    headers = run.records("run")
    assert len(run.files) == 2
    assert len(set(column(headers, "run_id"))) == 1
    assert headers[0].display_name == "first"
    options = {}
    for config in run.records("config"):
        for item in config.update:
            options[item.key] = json.loads(item.value_json)
    assert options["data"]["image_size"] == 64
    assert options["trainer"]["max_epochs"] == 2
    assert options["names"] == NAMES
    for name in ("train/box_loss", "val/mAP50-95", "val/per_class", "val/images"):
        assert column(run.with_name(name), "epoch") == [0, 1], name
    iterations = column(run.with_name("lr/bias"), "trainer/global_step")
    assert iterations == list(range(len(iterations)))
    assert len(iterations) > 3
    metrics = {m.glob_name or m.name: m.step_metric for m in run.records("metric")}
    assert {metrics["train/*"], metrics["val/*"]} == {"epoch"}


def test_figures_and_tables_are_those_of_metrics_json(run):
    best = read(run.folder / "metrics.json")
    tags = run.events.Tags()["scalars"]
    scalars = {n: run.events.Scalars(n)[-1].value for n in tags if n.startswith("best/")}
    last = run.with_name("best/epoch")[-1]
    assert set(scalars) >= {"best/epoch", "best/mAP50-95", "best/P"}
    for name, value in scalars.items():
        assert value == pytest.approx(best[name.removeprefix("best/")], rel=1e-6), name
        assert last[name] == pytest.approx(value, rel=1e-6), name
    shown = run.with_name("val/per_class")[best["epoch"]]["val/per_class"]
    table = read(run.media(shown["path"]))
    assert table["columns"] == list(best["per_class"][0])
    for cells, row in zip(table["data"], best["per_class"], strict=True):
        assert cells == pytest.approx(list(row.values()))


def test_wandb_pictures_have_boxes_with_names_and_scores(run):
    shown = run.with_name("val/images")[-1]["val/images"]
    counts = {"ground_truth": 0, "predictions": 0}
    assert shown["count"] == 8 == len(shown["all_boxes"])
    for file, boxes in zip(shown["filenames"], shown["all_boxes"], strict=True):
        assert run.media(file).is_file()
        for kind, reference in boxes.items():
            content = read(run.media(reference["path"]))
            assert list(content["class_labels"].values()) == NAMES
            counts[kind] += len(content["box_data"])
            for box in content["box_data"]:
                corners = box["position"]
                assert corners["minX"] <= corners["maxX"]
                assert corners["minY"] <= corners["maxY"]
                assert box["box_caption"].startswith(NAMES[box["class_id"]])
                assert ("scores" in box) == (kind == "predictions")
    assert all(counts.values())


def test_tensorboard_shows_the_same(run):
    events = run.events
    steps = column(events.Scalars("val/mAP50"), "step")
    plots = {f"plots/{path.name}" for path in (run.folder / "plots").iterdir()}
    tables = events.Tensors("val/per_class/text_summary")
    assert len(steps) == len(set(steps)) == 2
    assert column(events.Images("val/images"), "step") == steps
    assert column(tables, "step") == steps
    assert "    disc " in tables[0].tensor_proto.string_val[0].decode()
    rates = column(events.Scalars("lr/bias"), "step")
    assert rates == list(range(len(rates)))
    assert {"plots/train_batch0.jpg", "plots/val_labels.jpg"} <= plots
    assert plots <= set(events.Tags()["images"])
    for name in plots:
        assert run.with_name(name)


def test_mlflow(small_data, here, monkeypatch):
    """Parameters, metrics, pictures, and the best checkpoint, as log_model says."""
    mlflow = MagicMock()
    client = mlflow.tracking.MlflowClient.return_value
    client.get_experiment_by_name.return_value = None
    client.create_run.return_value.info.run_id = "r"
    for name in ("mlflow", "mlflow.tracking", "mlflow.tracking.context", "mlflow.entities"):
        monkeypatch.setitem(sys.modules, name, mlflow)
    mlflow.MlflowClient = mlflow.tracking.MlflowClient
    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", True)
    more = "--trainer.logger MLFlowLogger --trainer.logger.log_model true --trainer.max_epochs 1"
    train(small_data, here / "run", f"{more} --pictures.enabled true")
    options = column(column(mlflow.Param.call_args_list, "kwargs"), "key")
    metrics = set(column(column(mlflow.Metric.call_args_list, "kwargs"), "key"))
    images = {call.kwargs["key"]: call.args[1] for call in client.log_image.call_args_list}
    assert "data/image_size" in options
    assert {"val/mAP50-95", "train/box_loss", "best/mAP50-95"} <= metrics
    assert {"val/images", "plots/train_batch0.jpg"} <= images.keys()
    assert images["val/images"].dtype == np.uint8
    assert Path(client.log_artifact.call_args[0][1]).name == "best.ckpt"
    assert client.log_artifact.call_count == 1


@pytest.mark.parametrize(("epochs", "every"), [(100, 5), (300, 5), (7, 1)])
def test_tables_come_some_20_times(epochs, every):
    validated = range(every - 1, epochs, every)
    shown = sum(is_due(epoch, epochs) for epoch in validated)
    assert min(len(validated), 20) <= shown < 40
    assert is_due(epochs - 1, epochs)


def test_where_loggers_write(tmp_path, monkeypatch):
    """Without a key for W&B nobody is asked for one; a .netrc for something else is none. A resume
    continues the run of the checkpoint, also in a process whose parent has used W&B."""
    monkeypatch.setenv("WANDB_SERVICE", "of the parent")
    (tmp_path / ".netrc").write_text("machine git.example login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    wandb_options = Namespace(save_dir=".", name=None, id=None)
    board_options = Namespace(save_dir="elsewhere", purge_step=None)
    loggers = [
        Namespace(class_path="WandbLogger", init_args=wandb_options),
        Namespace(class_path="TensorBoardLogger", init_args=board_options),
    ]
    place_loggers(loggers, tmp_path, {"global_step": 7, "run": {"wandb": "abc"}})
    assert "WANDB_SERVICE" not in os.environ
    assert wandb.setup().settings.mode == os.environ.pop("WANDB_MODE") == "offline"
    wandb.teardown()
    assert vars(wandb_options) == {"save_dir": str(tmp_path), "name": tmp_path.name, "id": "abc"}
    assert vars(board_options) == {"save_dir": "elsewhere", "purge_step": 7}


def test_loggers_that_fail(small_data, here, refused, capfd, monkeypatch):
    """One that is not installed; and with a full disk training ends as it does without one."""
    missing = RequirementCache("no-such-package>=1")
    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", missing)
    told = refused(small_fit(small_data, here / "no", "--trainer.logger", "MLFlowLogger"))
    assert "no-such-package" in told

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("boltbox.callbacks.dashboard.show_images", full)
    more = f"--config {ROOT}/configs/tensorboard.yaml --trainer.limit_train_batches 1 --trainer.max_epochs 2"
    train(small_data, here / "run", more)
    assert capfd.readouterr().out.count("No space left on device") == 1
    assert (here / "run/checkpoints/last.ckpt").is_file()
