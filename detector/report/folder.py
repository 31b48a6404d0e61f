"""The files in a run folder, read for a report or a comparison."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.text_file import load_yaml, read_text


class RunFiles:
    """Files of a run; empty where there is no such file.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        config: Map of config.yaml.
        changed: Map of changed.yaml.
        machine: Map of machine.json.
        metrics: Map of metrics.json.
        anchors: Map of anchors.json.
        epochs: Rows of metrics.csv.

    Raises:
        InputError: the folder holds neither metrics.json nor metrics.csv, or a file that cannot be
            read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = _read(path / "config.yaml")
        self.changed = _read(path / "changed.yaml")
        self.machine = _read(path / "machine.json")
        self.metrics = _read(path / "metrics.json")
        self.anchors = _read(path / "anchors.json")
        self.epochs = _read(path / "metrics.csv")
        if not self.metrics and not self.epochs:
            raise InputError(
                f"{path}: no metrics of a run (neither metrics.json nor metrics.csv); give the"
                " folder of a fit, validate or test that has finished an epoch, as runs/fit-1"
            )

    def record(self) -> PredictionRecord:
        """The content of detections.npz.

        Raises:
            InputError: it is missing, damaged, or not of the evaluation that metrics.json is of.
        """
        path = self.path / "detections.npz"
        if not path.is_file():
            raise InputError(f"{path} is missing")
        record = PredictionRecord.load(path)
        evaluation = (self.metrics.get("command"), self.metrics.get("epoch", -1))
        if evaluation != (record.command, record.epoch):
            raise InputError(f"{path} is of another evaluation than metrics.json")
        return record


def best_epoch(run: Path) -> dict[str, Any]:
    """The metrics of the best epoch of a fit, from its metrics.json; {} without one.

    Args:
        run: The run folder.
    """
    with contextlib.suppress(InputError):
        content = _read(run / "metrics.json")
        if content.get("command") == "fit":
            return content
    return {}


def _read(path: Path) -> Any:
    """The rows of a table, or the map of a YAML or JSON file; empty if there is no file."""
    try:
        if path.suffix == ".csv":
            return read_table(path)
        if not path.is_file():
            return {}
        text = read_text(path)
        content = json.loads(text) if path.suffix == ".json" else load_yaml(text)
        if not isinstance(content, dict):
            raise ValueError("expected a map")
    except Exception as e:
        raise InputError(f"{path} cannot be read: {in_one_line(e)}") from None
    return content
