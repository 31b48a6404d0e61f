"""The files in a run folder, read for a report or a comparison."""

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


@dataclass
class RunFiles:
    """Files of a run; empty where there is no such file.

    Attributes:
        path: The folder.
        config: config.yaml.
        changed: changed.yaml.
        machine: machine.json.
        metrics: metrics.json.
        anchors: anchors.json.
        epochs: Rows of metrics.csv.
    """

    path: Path
    config: dict[str, Any]
    changed: dict[str, Any]
    machine: dict[str, Any]
    metrics: dict[str, Any]
    anchors: dict[str, Any]
    epochs: list[dict[str, str]]

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Read a run folder.

        Args:
            path: The folder.

        Returns:
            Its files.

        Raises:
            InputError: the folder holds neither metrics.json nor metrics.csv, or a file that cannot
                be read.
        """
        files = cls(
            path,
            config=_read(path / "config.yaml"),
            changed=_read(path / "changed.yaml"),
            machine=_read(path / "machine.json"),
            metrics=_read(path / "metrics.json"),
            anchors=_read(path / "anchors.json"),
            epochs=_read(path / "metrics.csv"),
        )
        if not files.metrics and not files.epochs:
            raise InputError(
                f"{path}: no metrics of a run (neither metrics.json nor metrics.csv); give the"
                " folder of a fit, validate or test that has finished an epoch, as runs/fit-1"
            )
        return files

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
