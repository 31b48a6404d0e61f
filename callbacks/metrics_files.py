"""metrics.csv, metrics.json, detections.npz; the table of the classes on the terminal."""

import json
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from detector.checkpoint.origins import to_plain
from detector.evaluation.metrics import Result
from detector.evaluation.prediction_record import PredictionRecord
from detector.evaluation.results import class_table, result_json
from detector.model.origin import told
from detector.report.folder import best_epoch
from detector.system.atomic_file import not_fatal, write_atomically
from detector.system.csv_table import read_table, write_table
from detector.system.rank_zero import rank_zero_print
from detector.training.module import Detector
from detector.training.recipe import data_of


class MetricsFiles(L.Callback):
    """After every epoch a row of metrics.csv: losses, metrics, learning rates, seconds. metrics.json holds the metrics of the
    best epoch of a fit, or of validate or test; detections.npz the detections and labels that they were computed from. The
    table by class is printed at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []  # of metrics.csv
        self.best = -1.0
        self.validated = False
        self.started = time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a resume: remove the rows of epochs that will be trained again."""
        self.started = time.perf_counter()  # a resume within an epoch skips on_train_epoch_start
        if trainer.is_global_zero:
            rows: list[dict[str, Any]] = list(read_table(_csv_path(trainer)))
            self.rows = [row for row in rows if int(row["epoch"]) < trainer.current_epoch]
            if len(self.rows) < len(rows):
                write_table(_csv_path(trainer), self.rows)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started, self.validated = time.perf_counter(), False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        self.validated = True
        result = pl_module.result
        if result is None or trainer.sanity_checking:
            return
        if trainer.state.fn != TrainerFn.FITTING:
            self._report(trainer, pl_module, result, "val")
        elif result.summary["fitness"] > self.best:
            self.best = result.summary["fitness"]
            self._write_json(trainer, pl_module, result, "val")

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        if pl_module.result is not None:
            self._report(trainer, pl_module, pl_module.result, "test")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = trainer.callback_metrics  # first, in all processes: after a validation within the epoch it reduces over them
        if not trainer.is_global_zero:
            return
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        for name, value in metrics.items():
            if self.validated or not name.startswith("val/"):
                row[name] = f"{float(value):.6g}"
        for group in trainer.optimizers[0].param_groups:
            row[f"lr/{group['name']}"] = f"{group['lr']:.6g}"
        row["seconds"] = f"{time.perf_counter() - self.started:.1f}"
        self.rows.append(row)
        write_table(_csv_path(trainer), self.rows)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The table of the best epoch, which may be from before a resume."""
        content = best_epoch(Path(trainer.default_root_dir)) if trainer.is_global_zero else {}
        if content:
            rank_zero_print(f"\nbest: epoch {content['epoch'] + 1}/{trainer.max_epochs}\n{class_table(content)}")

    def _report(self, trainer: L.Trainer, pl_module: Detector, result: Result, split: str) -> None:
        content = self._write_json(trainer, pl_module, result, split)
        rank_zero_print(f"\n{class_table(content)}\n{told(pl_module.network.origins)}\nfigures: {_json_path(trainer)}")

    def _write_json(self, trainer: L.Trainer, pl_module: Detector, result: Result, split: str) -> dict[str, Any]:
        path, command = _json_path(trainer), str(trainer.state.fn.value if trainer.state.fn else "")
        content: dict[str, Any] = {"command": command, "split": split}
        if trainer.state.fn == TrainerFn.FITTING:
            content["epoch"] = trainer.current_epoch
        content |= result_json(result, pl_module.names)
        content["origins"] = to_plain(pl_module.network.origins)
        with not_fatal(path.with_name("detections.npz")):
            data = data_of(trainer)
            files = [os.path.abspath(data.path(split, index)) for index in result.seen]
            record = PredictionRecord.of(
                result.seen, files, pl_module.names, data.image_size, split, command, content.get("epoch", -1)
            )
            record.save(path.with_name("detections.npz"))
        with not_fatal(path):
            write_atomically(path, lambda file: file.write(json.dumps(content, indent=1).encode()))
        return content

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]


def _csv_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.csv"


def _json_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.json"
