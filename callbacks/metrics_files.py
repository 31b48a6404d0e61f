"""metrics.json, detections.npz; the table of the classes on the terminal."""

from pathlib import Path
from typing import Any

import lightning as L

from boltbox.callbacks.checkpoints import checkpoints_of
from boltbox.detector.evaluation.metrics import Result
from boltbox.detector.report.folder import best_epoch
from boltbox.detector.report.table import class_table, number
from boltbox.detector.system.atomic_file import not_fatal, write_json
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_data import data_of
from boltbox.detector.weights.published import describe_origins


class MetricsFiles(L.Callback):
    """metrics.json holds the metrics of the best epoch of a fit, that of best.ckpt, or of validate
    or test; detections.npz the detections and labels that they were computed from. The table by
    class is printed at the end. Without boltbox.callbacks.Checkpoints the last epoch counts."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """As for test; only the first process has a result."""
        result = pl_module.evaluation.result
        if result is None or trainer.state.fn == "fit":
            return
        content = self._write(trainer, pl_module, result)
        rank_zero_print(f"\n{class_table(content)}\n")
        print_fact("origin", describe_origins(pl_module.network.origins))
        print_fact("metrics", _json_path(trainer))

    on_test_end = on_validation_end  # type: ignore[assignment]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """By the same rule as Checkpoints, which Lightning calls later, writes best.ckpt."""
        result = pl_module.evaluation.result
        fitness = pl_module.evaluation.fitness
        checkpoints = checkpoints_of(trainer)
        best = checkpoints.best_fitness() if checkpoints else -1.0
        if result is not None and fitness is not None and fitness > best:
            self._write(trainer, pl_module, result)

    def on_fit_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """The table of the best epoch, which may be from before a resume."""
        if not trainer.is_global_zero:
            return
        content = best_epoch(Path(trainer.default_root_dir))
        if content:
            rank_zero_print(f"\n{class_table(content)}\n")
            print_fact(
                "best",
                f"epoch {content['epoch'] + 1} of {trainer.max_epochs}:"
                f" mAP50 {number(content['mAP50'])}, mAP50-95 {number(content['mAP50-95'])}",
            )

    def _write(self, trainer: L.Trainer, pl_module: Detector, result: Result) -> dict[str, Any]:
        """Returns the content of metrics.json."""
        command = trainer.state.fn.value  # type: ignore[union-attr]
        split = "test" if trainer.testing else "val"
        content: dict[str, Any] = {"command": command, "split": split}
        if command == "fit":
            content["epoch"] = trainer.current_epoch
            content["optim"] = pl_module.hparams["optim"]  # also what was left open
        content |= result.to_json(pl_module.names)
        content["origins"] = [origin._asdict() for origin in pl_module.network.origins]
        data = data_of(trainer)
        files = [f"image {index}" for index in result.indices]  # no file has such a name
        if data:
            files = [data.path(split, index) for index in result.indices]
        record = result.record
        record.names = pl_module.names
        record.command = command
        record.epoch = content.get("epoch", -1)
        record.files = files
        path = _json_path(trainer)
        record_path = path.with_name("detections.npz")
        with not_fatal(record_path):
            record.save(record_path)
        write_json(path, content)
        return content


def _json_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.json"
