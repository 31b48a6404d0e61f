"""metrics.csv, a row an epoch; metrics.json, the figures that count, and detections.npz, where they come from; the table on
the screen."""

import csv
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from detector.evaluation.metrics import Result
from detector.evaluation.prediction_record import PredictionRecord
from detector.evaluation.results import class_table, result_json
from detector.system.atomic_file import not_fatal, write_atomically
from detector.training.module import Detector
from detector.training.recipe import data_of


class MetricsFiles(L.Callback):
    """After every epoch a row of metrics.csv: losses, figures, learning rates, seconds. metrics.json holds the best epoch of a
    fit, or what validate or test found; detections.npz the detections and labels behind it. The table by class is printed at
    the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []  # of metrics.csv
        self.best = -1.0
        self.validated = False
        self.started = time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a resume: rows of epochs that will be trained again go."""
        self.started = time.perf_counter()  # within an epoch nobody calls on_train_epoch_start
        if trainer.is_global_zero:
            rows = _read(_csv_path(trainer))
            self.rows = [row for row in rows if int(row["epoch"]) < trainer.current_epoch]
            if len(self.rows) < len(rows):
                _write(_csv_path(trainer), self.rows)

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
        metrics = trainer.callback_metrics  # after a validation within the epoch the processes have yet to add theirs up
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
        _write(_csv_path(trainer), self.rows)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The best epoch's table, which may be from before a resume."""
        content = best_epoch(Path(trainer.default_root_dir)) if trainer.is_global_zero else {}
        if content:
            print(f"\nbest: epoch {content['epoch'] + 1}/{trainer.max_epochs}\n{class_table(content)}")

    def _report(self, trainer: L.Trainer, pl_module: Detector, result: Result, split: str) -> None:
        content = self._write_json(trainer, pl_module, result, split)
        print(f"\n{class_table(content)}\nfigures: {_json_path(trainer)}")

    def _write_json(self, trainer: L.Trainer, pl_module: Detector, result: Result, split: str) -> dict[str, Any]:
        """Figures of another command in the same folder stay, under another name."""
        path, command = _json_path(trainer), str(trainer.state.fn.value if trainer.state.fn else "")
        if path.is_file():
            before = json.loads(path.read_text()).get("command")
            for file in (path, path.with_name("detections.npz")):
                if before != command and file.is_file():
                    file.replace(file.with_name(f"{file.stem}.{before}{file.suffix}"))
        content: dict[str, Any] = {"command": command, "split": split}
        if trainer.state.fn == TrainerFn.FITTING:
            content["epoch"] = trainer.current_epoch
        content |= result_json(result, pl_module.names)
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


def best_epoch(run: Path) -> dict[str, Any]:
    """What metrics.json says of a fit; {} without one. Figures of a later command may have pushed it aside."""
    for file in (run / "metrics.json", run / "metrics.fit.json"):
        content = json.loads(file.read_text()) if file.is_file() else {}
        if content.get("command") == "fit":
            return content
    return {}


def _csv_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.csv"


def _json_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.json"


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    with not_fatal(path):
        write_atomically(path, lambda file: file.write(text.getvalue().encode()))
