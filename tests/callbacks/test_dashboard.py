"""What W&B and TensorBoard hold after a run and its resume, read back from their files. No account,
no network."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from shlex import split
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import wandb
from jsonargparse import Namespace
from lightning.pytorch.loggers import CometLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning_utilities.core.imports import RequirementCache
from made_evidence import evidence_of
from matplotlib.axes import Axes
from PIL import Image
from small_fit import small_fit
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from wandb_files import read_history, read_records

import cli
from boltbox.callbacks.dashboard import is_due
from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.confusion import mistaken_classes
from boltbox.detector.evaluation.metrics import Result
from boltbox.detector.loggers.media import Time, show_image, show_precision_recall
from boltbox.detector.loggers.placement import place_loggers
from boltbox.detector.report.charts import draw_confidence

BY_STEP = ("lr/bias", "lr/norm", "lr/weight", "momentum", "accumulate")
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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        self.rows = [(step, values) for file in self.files for step, values in read_history(file)]
        self.events = EventAccumulator(
            str(folder / "tensorboard"), {"images": 0, "tensors": 0, "scalars": 0}
        )
        self.events.Reload()

    def records(self, kind: str) -> list[Any]:
        found = [
            r
            for file in self.files
            for r in read_records(file)
            if r.WhichOneof("record_type") == kind
        ]
        return [getattr(r, kind) for r in found]

    def with_name(self, name: str) -> list[dict[str, Any]]:
        return [values for _, values in self.rows if name in values]

    def media(self, path: str) -> Path:
        # two of the same content have the same name
        return next(self.folder.glob(f"wandb/offline-run-*/files/{path}"))


def ended() -> None:
    """As at the end of a process. `finish` alone does not wait until the file is written."""
    wandb.finish()
    wandb.teardown()


@pytest.fixture(scope="module")
def run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    here = tmp_path_factory.mktemp("dashboard")
    (here / "loggers.yaml").write_text(LOGGERS)
    options = {
        "config": here / "loggers.yaml", "data.dataset": small_data, "data.image_size": 64, "data.batch_size": 8,
        "data.workers": 0, "model.network.width_multiple": 0.125, "model.network.depth_multiple": 0.1,
        "model.network.levels": [5], "doctor.enabled": "false", "trainer.accelerator": "cpu", "trainer.log_every_n_steps": 1,
        "trainer.enable_progress_bar": "false", "trainer.precision": "32-true",
        "autoanchor.enabled": "false", "report.enabled": "false", "run": here / "first",
    }  # fmt: skip
    line = ["fit", *(str(x) for k, v in options.items() for x in (f"--{k}", v))]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "MODE": "offline",
            "SILENT": "true",
            "DATA_DIR": here,
            "CACHE_DIR": here / "cache",
        }.items():
            patch.setenv(f"WANDB_{name}", str(value))
        patch.setattr("boltbox.detector.report.drawing.CONF", 0.001)
        patch.delenv("BOLTBOX_RUN", raising=False)
        cli.main([*line, "--trainer.max_epochs", "1"])
        ended()
        cli.main([*line, "--trainer.max_epochs", "2", "--ckpt_path", "last"])
        ended()
        yield Run(here / "first")


def test_one_wandb_run_with_name_and_configuration(run: Run) -> None:
    assert len(run.files) == 2
    headers = run.records("run")
    assert len({h.run_id for h in headers}) == 1
    assert {(h.display_name, h.project, tuple(h.tags), h.notes) for h in headers} == {
        ("first", "test", ("a", "b"), "a note")
    }
    options = {
        item.key: json.loads(item.value_json)
        for config in run.records("config")
        for item in config.update
    }
    assert options["model"]["optim"]["lrf"] == 0.01
    assert options["data"]["image_size"] == 64
    assert options["trainer"]["max_epochs"] == 2  # the resumed run's
    assert len(options["names"]) == 5
    assert "lr0" not in options, "said twice"


def test_wandb_steps_increase_and_nothing_is_doubled(run: Run) -> None:
    for file in run.files:
        steps = [step for step, _ in read_history(file)]
        assert steps == list(range(len(steps)))
    for name in (
        "train/box_loss",
        "val/mAP50-95",
        "val/per_class",
        "val/images",
    ):
        assert [row["epoch"] for row in run.with_name(name)] == [0, 1], name
    iterations = [row["trainer/global_step"] for row in run.with_name("lr/bias")]
    assert iterations == list(range(len(iterations)))
    assert len(iterations) > 3
    assert all(set(BY_STEP) <= row.keys() for row in run.with_name("lr/bias"))


def test_wandb_metrics_have_a_defined_step(run: Run) -> None:
    metrics = {m.glob_name or m.name: m.step_metric for m in run.records("metric")}
    assert {metrics["train/*"], metrics["val/*"]} == {"epoch"}
    assert metrics["*"] == "trainer/global_step"


def test_best_figures_are_the_best_epochs(run: Run) -> None:
    best = json.loads((run.folder / "metrics.json").read_text())
    summary = {
        i.key or "/".join(i.nested_key): json.loads(i.value_json)
        for s in run.records("summary")
        for i in s.update
    }
    scalars = {
        name: run.events.Scalars(name)[-1].value
        for name in run.events.Tags()["scalars"]
        if name.startswith("best/")
    }
    assert set(scalars) >= {"best/epoch", "best/mAP50-95", "best/P"}
    for name in scalars:
        assert summary[name] == pytest.approx(best[name.removeprefix("best/")]), name
        assert scalars[name] == pytest.approx(summary[name], rel=1e-6), name


def test_wandb_tables(run: Run) -> None:
    """The best epoch's table has the figures that were printed; so has the last one."""
    best = json.loads((run.folder / "metrics.json").read_text())
    expected = [list(row.values()) for row in best["per_class"]]
    *_, last = run.with_name("best/per_class")
    for row in (last, run.with_name("val/per_class")[best["epoch"]]):
        table = json.loads(
            run.media((row.get("best/per_class") or row["val/per_class"])["path"]).read_text()
        )
        assert table["columns"] == ["name", "objects", "P", "R", "mAP50", "mAP50-95", "coco/AP"]
        for found, wanted in zip(table["data"], expected, strict=True):
            assert found[0] == wanted[0]
            assert found[1:] == pytest.approx(wanted[1:])


def test_wandb_pictures_have_boxes_with_names_and_scores(run: Run) -> None:
    names = {"0": "disc", "1": "ring", "2": "star", "3": "triangle", "4": "cross"}
    predicted = real = 0
    for row in run.with_name("val/images"):
        shown = row["val/images"]
        assert shown["count"] == 8 == len(shown["filenames"]) == len(shown["all_boxes"])
        for file, boxes in zip(shown["filenames"], shown["all_boxes"], strict=True):
            width, height = Image.open(run.media(file)).size
            for kind, reference in boxes.items():
                content = json.loads(run.media(reference["path"]).read_text())
                assert content["class_labels"] == names
                for box in content["box_data"]:
                    corners = box["position"]
                    assert -1 <= corners["minX"] <= corners["maxX"] <= width + 1
                    assert -1 <= corners["minY"] <= corners["maxY"] <= height + 1
                    assert box["box_caption"].startswith(names[str(box["class_id"])])
                    if kind == "predictions":
                        assert 0.001 <= box["scores"]["confidence"] <= 1
                predicted += len(content["box_data"]) * (kind == "predictions")
                real += len(content["box_data"]) * (kind == "ground_truth")
    assert predicted > 0
    assert real > 0


def test_plots_come_at_the_end(run: Run) -> None:
    plots = {f"plots/{path.name}" for path in (run.folder / "plots").iterdir()}
    assert {"plots/train_batch0.jpg", "plots/val_labels.jpg"} <= plots
    assert all(run.with_name(name) for name in plots)
    assert plots <= set(run.events.Tags()["images"])


def test_tensorboard_shows_the_same(run: Run) -> None:
    events = run.events
    steps = [e.step for e in events.Scalars("val/mAP50")]
    assert len(steps) == 2
    assert steps == sorted(set(steps))
    assert [e.step for e in events.Images("val/images")] == steps
    tables = events.Tensors("val/per_class/text_summary")
    assert [e.step for e in tables] == steps
    assert "    disc " in tables[0].tensor_proto.string_val[0].decode()
    *_, precision, recall = make_ndarray(
        events.Tensors("val/precision_recall/disc")[-1].tensor_proto
    )
    assert precision.shape == recall.shape == (101,)
    assert [e.step for e in events.Scalars("lr/bias")] == list(
        range(len(events.Scalars("lr/bias")))
    )
    assert (
        b"model/optim/lr0"
        in events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    )


def test_the_report_and_tensorboard_show_one_curve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By hand: 4 objects, detections by score 0.9 right, 0.8 wrong, 0.7 right. Recalls 0.25, 0.25,
    0.5; precisions 1, 1/2, 2/3. The best precision from a recall on is 1 up to 0.25, 2/3 up to 0.5,
    and falls to 0 at 1, as YOLOv5's AP has it."""
    hits = np.repeat(np.array([[True], [False], [True]]), 10, 1)
    metrics = class_metrics(hits, np.array([0.9, 0.8, 0.7]), np.zeros(3), np.zeros(4))
    result = Result({}, metrics, np.zeros(1), [], evidence_of([]))

    drawn: dict[str, Any] = {}
    monkeypatch.setattr(
        Axes, "plot", lambda axis, x, y, **_: drawn.update({axis.get_title(): (x, y)})
    )
    draw_confidence(metrics, ["cat"], tmp_path / "confidence.png")
    recalls, report = drawn["Precision against recall, IoU 0.5"]
    assert recalls[[0, 20, 25, 30, 50, 75, 100]].tolist() == [0, 0.2, 0.25, 0.3, 0.5, 0.75, 1]
    assert report[[0, 20, 30, 75, 100]].tolist() == pytest.approx([1, 1, 2 / 3, 1 / 3, 0])

    logger = TensorBoardLogger(tmp_path, name="", version="board")
    show_precision_recall(logger, "curve", result, ["cat"], Time(0, 0))
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir, {"tensors": 0})
    events.Reload()
    *_, y, x = make_ndarray(events.Tensors("curve/cat")[0].tensor_proto)
    assert len(set(x)) > 3
    assert y == pytest.approx(np.interp(x, recalls, report), abs=1e-4)


class MlflowClient:
    """The methods that are called, with the parameters of MLflow's documentation."""

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        self.uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        return "1"

    def create_run(
        self, experiment_id: str, start_time: int | None = None, tags: Any = None
    ) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def get_run(self, run_id: str) -> str:
        return run_id

    def set_terminated(self, run_id: str, status: str | None = None) -> None:
        SENT["status"] += [status]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        SENT["metrics"] += metrics
        SENT["params"] += params

    def log_image(
        self,
        run_id: str,
        image: np.ndarray,
        artifact_file: str | None = None,
        key: str | None = None,
        step: int | None = None,
    ) -> None:
        SENT["images"] += [(key, image.dtype, image.ndim, step)]

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None:
        SENT["files"] += [Path(local_path)]

    def log_artifacts(self, run_id: str, local_dir: str, artifact_path: str | None = None) -> None:
        """Lightning's notes on a checkpoint."""


SENT: dict[str, list[Any]] = defaultdict(list)


def test_mlflow(small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, metrics, pictures, and the best checkpoint, as log_model says."""
    names = ("mlflow", "mlflow.tracking", "mlflow.tracking.context", "mlflow.entities")
    parts: dict[str, Any] = {name: ModuleType(name) for name in names}
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, name, part)
    parts["mlflow"].set_tracking_uri = str
    parts["mlflow.tracking"].MlflowClient = MlflowClient
    parts["mlflow.tracking"].context = parts["mlflow.tracking.context"]
    parts["mlflow.tracking.context"].resolve_tags = lambda tags: tags or {}
    parts["mlflow.entities"].Param = parts["mlflow.entities"].Metric = SimpleNamespace
    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", True)
    SENT.clear()
    more = ["--trainer.logger", "MLFlowLogger", "--trainer.logger.log_model", "true"]
    more += ["--pictures.enabled", "true", "--trainer.max_epochs", "1"]
    cli.main(small_fit(small_data, here / "run", *more))
    options = {param.key: param.value for param in SENT["params"]}
    assert options["data/image_size"] == "64"
    assert {"val/mAP50-95", "train/box_loss", "best/mAP50-95"} <= {m.key for m in SENT["metrics"]}
    shown = {key: rest for key, *rest in SENT["images"]}
    assert shown["val/images"] == [*shown["plots/train_batch0.jpg"][:2], 2]
    assert [path.name for path in SENT["files"]] == ["best.ckpt"]
    assert SENT["status"] == ["FINISHED"]


def test_pictures_of_other_loggers() -> None:
    """Comet's method of its experiment; a logger's own method as WandbLogger has it."""

    class Experiment:
        def log_image(
            self, image_data: Any, name: str | None = None, step: int | None = None
        ) -> None:
            seen.append((image_data.shape, name, step))

    class Comet(CometLogger):
        experiment = Experiment()

        def __init__(self) -> None:
            """Without the package."""

    class Own(DummyLogger):
        def log_image(self, key: str, images: list[Any], step: int | None = None) -> None:
            seen.append((images[0].shape, key, step))

    seen: list[Any] = []
    for logger in (Comet(), Own(), DummyLogger()):
        show_image(logger, "a", np.zeros((2, 3, 3), np.uint8), Time(1, 5))
    assert seen == [((2, 3, 3), "a", 5)] * 2


def test_a_logger_that_is_not_installed(
    small_data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = RequirementCache("no-such-package>=1")
    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", missing)
    with pytest.raises(SystemExit):
        cli.main(small_fit(small_data, here / "run", "--trainer.logger", "MLFlowLogger"))
    assert "pip install 'no-such-package>=1'" in capsys.readouterr().err


def test_mistaken_classes_by_frequency() -> None:
    """Class 2 is background, which is nobody's mistake."""
    cells = np.array([[0, 0], [0, 2], [1, 0], [2, 0], [0, 1]])  # predicted, true
    pairs = cells.repeat([5, 2, 3, 1, 4], 0)
    assert mistaken_classes(pairs, 2) == [[1, 0, 4], [0, 1, 3]]


@pytest.mark.parametrize(("epochs", "every"), [(100, 1), (100, 5), (40, 2), (300, 5), (7, 1)])
def test_tables_come_some_20_times(epochs: int, every: int) -> None:
    validated = [epoch for epoch in range(epochs) if (epoch + 1) % every == 0]
    shown = sum(is_due(epoch, epochs) for epoch in validated)
    assert min(len(validated), 20) <= shown < 40


def test_wandb_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .netrc for something else is no key, and nobody is asked for one."""
    (tmp_path / ".netrc").write_text("machine git.example login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    arguments = Namespace(save_dir=".", name=None, id=None)
    place_loggers(Namespace(class_path="WandbLogger", init_args=arguments), tmp_path, {})
    assert os.environ.pop("WANDB_MODE") == "offline"
    assert arguments.save_dir == str(tmp_path)


def test_a_logger_that_fails_is_printed_once(
    small_data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a full disk training ends as it does without a dashboard."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("boltbox.callbacks.dashboard.show_images", full)
    config = Path(cli.__file__).parent / "configs/tensorboard.yaml"
    options = "--report.enabled false --trainer.limit_train_batches 1"
    line = [*small_fit(small_data, Path("run"), "--config", str(config)), *split(options)]
    cli.main([*line, "--trainer.max_epochs", "2"])
    printed = capsys.readouterr().out
    assert printed.count("warning: TensorBoardLogger failed (OSError: [Errno 28] No space") == 1
    events = EventAccumulator("run/tensorboard")
    events.Reload()
    assert len(events.Scalars("val/mAP50")) == 2
