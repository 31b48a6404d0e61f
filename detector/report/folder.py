"""What lies in a run's folder, read for a report or a comparison."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.text_file import load_yaml, read_text

FILES = (  # in the order of the fields
    *("config.yaml", "changed.yaml", "machine.json", "metrics.json", "anchors.json"),
    "metrics.csv",
)


@dataclass
class RunFiles:
    """path: the folder · config: config.yaml · changed: changed.yaml · machine: machine.json ·
    metrics: metrics.json · anchors: anchors.json · epochs: rows of metrics.csv; empty where there
    is no such file."""

    path: Path
    config: dict[str, Any]
    changed: dict[str, Any]
    machine: dict[str, Any]
    metrics: dict[str, Any]
    anchors: dict[str, Any]
    epochs: list[dict[str, str]]

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Raises InputError if the folder holds neither metrics.json nor metrics.csv, or a file
        that cannot be read."""
        files = cls(path, *(_read(path / name) for name in FILES))
        if not files.metrics and not files.epochs:
            raise InputError(
                f"{path}: no metrics of a run (neither metrics.json nor metrics.csv); give the"
                " folder of a fit, validate or test that has finished an epoch, as runs/fit-1"
            )
        return files

    @property
    def is_validation(self) -> bool:
        """Whether it is of the command validate or test."""
        return self.metrics.get("command") in ("validate", "test")

    def record(self) -> PredictionRecord:
        """detections.npz. Raises InputError if it is missing, damaged, or not of the evaluation
        that metrics.json is of."""
        path = self.path / "detections.npz"
        if not path.is_file():
            raise InputError(f"{path} is missing")
        record = PredictionRecord.load(path)
        of_metrics = self.metrics.get("command"), self.metrics.get("epoch", -1)
        if of_metrics != (record.command, record.epoch):
            raise InputError(f"{path} is of another evaluation than metrics.json")
        return record


def best_epoch(run: Path) -> dict[str, Any]:
    """The metrics of the best epoch of a fit, from its metrics.json; {} without one."""
    with contextlib.suppress(InputError):
        content = _read(run / "metrics.json")
        return content if content.get("command") == "fit" else {}
    return {}


def _read(path: Path) -> Any:
    """The rows of a table, or the map of a YAML or JSON file; empty if there is no file."""
    try:
        if path.suffix == ".csv":
            return read_table(path)
        if not path.is_file():
            return {}
        content = (json.loads if path.suffix == ".json" else load_yaml)(read_text(path))
        if not isinstance(content, dict):
            raise ValueError("expected a map")
    except Exception as e:
        raise InputError(f"{path} cannot be read: {in_one_line(e)}") from None
    return content
