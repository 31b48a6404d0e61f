"""metrics.csv, metrics.json, detections.npz; the table of the classes on the terminal."""

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.trainer.states import TrainerFn

from boltbox.callbacks.checkpoints import Checkpoints
from boltbox.detector.checkpoint.atomic_io import is_writing
from boltbox.detector.checkpoint.origins import to_plain
from boltbox.detector.evaluation.metrics import Result
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.evaluation.results import class_table, result_json
from boltbox.detector.model.origin import told
from boltbox.detector.report.folder import best_epoch
from boltbox.detector.system.atomic_file import not_fatal, remove, write_atomically
from boltbox.detector.system.csv_table import read_numbers, write_table
from boltbox.detector.system.damaged_file import read_or_set_aside
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.module import Detector
from boltbox.detector.training.recipe import data_of


class MetricsFiles(L.Callback):
    """After every epoch a row of metrics.csv: losses, metrics, learning rates, seconds.
    metrics.json holds the metrics of the best epoch of a fit, or of validate or test;
    detections.npz the detections and labels that they were computed from. The table by class is
    printed at the end. Files of an older start that are damaged are set aside.

    Those two are always of the same epoch as best.ckpt: while a thread writes that file they are
    called metrics.next.json and detections.next.npz, and are moved into place once it is on the
    disk, or removed if it could not be written."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []  # of metrics.csv
        self.best = -1.0
        self.validated = False
        self.started = time.perf_counter()
        self._next: dict[str, Any] = {}  # of metrics.next.json
        # the same of an epoch whose best.ckpt could not be written
        self._unsaved: dict[str, Any] = {}
        self._is_saved = False  # whether the checkpoint of that epoch is written, or being written

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            read_or_set_aside(_json_path(trainer), _read_json, dict)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a resume: remove the rows of epochs that will be trained again."""
        self.started = time.perf_counter()  # a resume within an epoch skips on_train_epoch_start
        if trainer.is_global_zero:
            rows: list[dict[str, Any]] = list(
                read_or_set_aside(_csv_path(trainer), partial(read_numbers, counter="epoch"), list)
            )
            self.rows = [row for row in rows if int(row["epoch"]) < trainer.current_epoch]
            if len(self.rows) < len(rows):
                write_table(_csv_path(trainer), self.rows)
            self._settle(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self._is_saved and not is_writing(trainer):
            self._settle(trainer)

    def on_exception(self, trainer: L.Trainer, *_: Any) -> None:
        if self._is_saved:
            self._settle(trainer)

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
            return
        if self._is_saved:
            self._settle(trainer)
        # as Lightning keeps it, and boltbox.callbacks.Checkpoints
        fitness = float(np.float32(result.summary["fitness"]))
        if fitness > self._best(trainer):
            self.best = fitness
            self._next = self._write_json(trainer, pl_module, result, "val", ".next")
            if self._checkpoints(trainer) is None:
                self._settle(trainer)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        if pl_module.result is not None:
            self._report(trainer, pl_module, pl_module.result, "test")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # first, in all processes: after a validation within the epoch it reduces over them
        metrics = trainer.callback_metrics
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
        self._is_saved = bool(self._next)  # by boltbox.callbacks.Checkpoints, which comes next

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The table of the best epoch, which may be from before a resume."""
        if not trainer.is_global_zero:
            return
        self._settle(trainer)
        content = best_epoch(Path(trainer.default_root_dir)) or self._unsaved
        if content:
            rank_zero_print(
                f"\nbest: epoch {content['epoch'] + 1}/{trainer.max_epochs}\n{class_table(content)}"
            )

    @staticmethod
    def _checkpoints(trainer: L.Trainer) -> Checkpoints | None:
        return next((c for c in trainer.callbacks if isinstance(c, Checkpoints)), None)  # type: ignore[attr-defined]

    def _best(self, trainer: L.Trainer) -> float:
        """The fitness of best.ckpt; in a script without boltbox.callbacks.Checkpoints that of the
        best epoch so far."""
        checkpoints = self._checkpoints(trainer)
        return checkpoints.best_on_disk(trainer) if checkpoints else self.best

    def _settle(self, trainer: L.Trainer) -> None:
        """Move the files of the best epoch into place if its best.ckpt is on the disk, else remove
        them."""
        self.best, self._is_saved = self._best(trainer), False
        path = _json_path(trainer)
        paths = {
            p: p.with_name(f"{p.stem}.next{p.suffix}")
            for p in (path.with_name("detections.npz"), path)
        }
        content = self._next or read_or_set_aside(paths[path], _read_json, dict)
        if not content or np.float32(content["fitness"]) > self.best:
            self._next, self._unsaved = (
                {},
                max(content, self._unsaved, key=lambda c: c.get("fitness", -1)),
            )
            for waiting in paths.values():
                remove(waiting)
            return
        for final, waiting in paths.items():
            with not_fatal(final):
                if waiting.is_file():
                    os.replace(waiting, final)
                elif final == path:
                    _dump_json(path, content)
                if final == path:
                    self._next = {}  # else it is tried again

    def _report(self, trainer: L.Trainer, pl_module: Detector, result: Result, split: str) -> None:
        content = self._write_json(trainer, pl_module, result, split)
        rank_zero_print(
            f"\n{class_table(content)}\n{told(pl_module.network.origins)}\nfigures:"
            f" {_json_path(trainer)}"
        )

    def _write_json(
        self, trainer: L.Trainer, pl_module: Detector, result: Result, split: str, ending: str = ""
    ) -> dict[str, Any]:
        """metrics.json and detections.npz, with `ending` in their names."""
        path, command = _json_path(trainer), str(trainer.state.fn.value if trainer.state.fn else "")
        path, record_path = (
            path.with_name(name) for name in (f"metrics{ending}.json", f"detections{ending}.npz")
        )
        content: dict[str, Any] = {"command": command, "split": split}
        if trainer.state.fn == TrainerFn.FITTING:
            content["epoch"] = trainer.current_epoch
        content |= result_json(result, pl_module.names)
        content["origins"] = to_plain(pl_module.network.origins)
        with not_fatal(record_path):
            data = data_of(trainer)
            files = [os.path.abspath(data.path(split, index)) for index in result.seen]
            record = PredictionRecord.of(
                result.seen,
                files,
                pl_module.names,
                data.image_size,
                split,
                command,
                content.get("epoch", -1),
            )
            record.save(record_path)
        with not_fatal(path):
            _dump_json(path, content)
        return content

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]


def _read_json(path: Path) -> dict[str, Any]:
    """A metrics.json of ours; raises what Python raises of anything else."""
    content = json.loads(path.read_text(encoding="utf-8"))
    class_table(content)
    if content["command"] == "fit":
        int(content["epoch"]), float(content["fitness"])
    return content


def _dump_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, lambda file: file.write(json.dumps(content, indent=1).encode()))


def _csv_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.csv"


def _json_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.json"
