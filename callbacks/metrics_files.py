"""metrics.json, detections.npz; the table of the classes on the terminal."""

import json
import os
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from boltbox.callbacks.checkpoints import best_fitness
from boltbox.detector.evaluation.metrics import Result
from boltbox.detector.model.origin import describe_origins, to_plain
from boltbox.detector.report.folder import best_epoch
from boltbox.detector.report.table import class_table
from boltbox.detector.system.atomic_file import not_fatal, write_atomically
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.module import Detector
from boltbox.detector.training.recipe import data_of


class MetricsFiles(L.Callback):
    """metrics.json holds the metrics of the best epoch of a fit, that of best.ckpt, or of validate
    or test; detections.npz the detections and labels that they were computed from. The table by
    class is printed at the end. Without boltbox.callbacks.Checkpoints the last epoch counts."""

    def __init__(self) -> None:
        self._content: dict[str, Any] = {}  # of metrics.json
        self._fitness = 0.0  # of its epoch
        self._newest: float | None = None  # of the last validation of this epoch

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """As for test; the first process has a result."""
        assert isinstance(pl_module, Detector)
        result, is_fit = pl_module.result, trainer.state.fn == TrainerFn.FITTING
        if result is None or trainer.sanity_checking:
            return
        fitness = float(trainer.callback_metrics[f"{'test' if trainer.testing else 'val'}/fitness"])
        if is_fit:
            self._newest = fitness
            return
        self._write(trainer, pl_module, result)
        origins = describe_origins(pl_module.network.origins)
        path = _json_path(trainer)
        rank_zero_print(f"\n{class_table(self._content)}\n{origins}\nmetrics: {path}")

    on_test_end = on_validation_end

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Checkpoints, which Lightning calls later, takes the same epochs for the best."""
        assert isinstance(pl_module, Detector)
        newest, self._newest = self._newest, None
        if newest is None or newest <= best_fitness(trainer):
            return
        assert pl_module.result is not None
        self._fitness = newest
        self._write(trainer, pl_module, pl_module.result)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The table of the best epoch, which may be from before a resume."""
        if not trainer.is_global_zero:
            return
        if self._content and self._fitness <= best_fitness(trainer):
            self._write_json(trainer)  # again, in case that the disk has failed
        content = best_epoch(Path(trainer.default_root_dir)) or self._content
        if content:
            epoch = f"{content['epoch'] + 1}/{trainer.max_epochs}"
            rank_zero_print(f"\nbest: epoch {epoch}\n{class_table(content)}")

    def _write(self, trainer: L.Trainer, pl_module: Detector, result: Result) -> None:
        command = str(trainer.state.fn.value if trainer.state.fn else "")
        split = "test" if trainer.testing else "val"
        self._content = {"command": command, "split": split}
        if trainer.state.fn == TrainerFn.FITTING:
            self._content["epoch"] = trainer.current_epoch
        self._content |= result.to_json(pl_module.names)
        self._content["origins"] = to_plain(pl_module.network.origins)
        record_path, data = _json_path(trainer).with_name("detections.npz"), data_of(trainer)
        path = data.path if data else "image {1}".format  # no file has this name
        record = result.record
        record.names, record.command = pl_module.names, command
        record.files = [os.path.abspath(path(split, index)) for index in result.indices]
        record.epoch = self._content.get("epoch", -1)
        with not_fatal(record_path):
            record.save(record_path)
        self._write_json(trainer)

    def _write_json(self, trainer: L.Trainer) -> None:
        path = _json_path(trainer)
        with not_fatal(path):
            write_atomically(path, json.dumps(self._content, indent=1))


def _json_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.json"
