"""What lies in a run's folder, read for a report or a comparison; whatever is missing is said."""

from __future__ import annotations

import contextlib
import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.yaml_text import NO_YAML, load_yaml


@dataclass
class RunFiles:
    """path: the folder · config: config.yaml · metrics: metrics.json · epochs: rows of metrics.csv
    · iterations: rows of iterations.csv · changed: changed.yaml, None if there is none · machine:
    machine.json; empty what is not there."""

    path: Path
    config: dict[str, Any]
    metrics: dict[str, Any]
    epochs: list[dict[str, str]]
    iterations: list[dict[str, str]]
    changed: dict[str, Any] | None
    machine: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Raises InputError unless the folder holds metrics.json or metrics.csv."""
        evaluated = (path / "metrics.json").is_file() or (path / "metrics.csv").is_file()
        if not evaluated and not (path / "config.yaml").is_file():
            raise InputError(
                f"{path}: no run lies there (no config.yaml); give the folder of a fit, validate or"
                " test, as runs/fit-1"
            )
        if not evaluated:
            raise InputError(
                f"{path}: no figures yet (neither metrics.json nor metrics.csv); let it finish an"
                " epoch first"
            )
        config, metrics = _map(path / "config.yaml"), _map(path / "metrics.json")
        changed = _map(path / "changed.yaml") if (path / "changed.yaml").is_file() else None
        epochs, iterations = _rows(path / "metrics.csv"), _rows(path / "iterations.csv")
        return cls(path, config, metrics, epochs, iterations, changed, _map(path / "machine.json"))

    @property
    def title(self) -> str:
        """The folder's last two names, as runs/fit-1."""
        return "/".join(self.path.resolve().parts[-2:])

    def option(self, name: str, default: Any = None) -> Any:
        """A value of config.yaml by its flat name."""
        value: Any = self.config
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value

    def record(self) -> PredictionRecord | str:
        """detections.npz, or a sentence why there is none to go by."""
        path = self.path / "detections.npz"
        if not path.is_file():
            return (
                "detections.npz is missing: the run is older than reports; a validate of its"
                " checkpoint has one"
            )
        try:
            record = PredictionRecord.load(path)
        except InputError as e:
            return str(e)
        of_metrics = self.metrics.get("command"), self.metrics.get("epoch", -1)
        if of_metrics != (record.command, record.epoch):
            return (
                "detections.npz is of another evaluation than metrics.json; what follows from it is"
                " left out"
            )
        return record


def best_epoch(run: Path) -> dict[str, Any]:
    """The metrics of the best epoch of a fit, from its metrics.json; {} without one."""
    with contextlib.suppress(OSError, ValueError, RecursionError):  # missing, or damaged
        content = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("command") == "fit":
            return content
    return {}


def _map(path: Path) -> dict[str, Any]:
    """A YAML or JSON file that holds a map; an empty one if there is no file."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else load_yaml(text)
    except NO_YAML as e:
        raise InputError(
            f"{path}: it cannot be read ({' '.join(str(e).split())}); remove it and evaluate again"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a map; remove it and evaluate again")
    return content


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        return read_table(path)
    except (csv.Error, UnicodeDecodeError) as e:
        raise InputError(f"{path}: it cannot be read as a table ({e})") from None
