"""The callbacks that have options, and config.yaml of a fit that a script started."""

import inspect
import json
from typing import Any

import lightning as L
import yaml

from callbacks.autoanchor import AutoAnchor
from callbacks.checkpoints import Checkpoints
from callbacks.dashboard import Dashboard
from callbacks.data import data_of
from callbacks.doctor import DoctorCheck
from callbacks.early_stop import EarlyStop
from callbacks.ema import EMA
from callbacks.flight_recorder import FlightRecorder
from callbacks.pictures import Pictures
from callbacks.report import Report
from callbacks.warmup import Warmup
from detector.module import Detector
from detector.recipe import UNLESS_GIVEN

# By the name of their options in the CLI. The warm-up comes early: a LearningRateMonitor shows what is used.
CALLBACKS: dict[str, type[L.Callback]] = {
    "doctor": DoctorCheck,
    "autoanchor": AutoAnchor,
    "warmup": Warmup,
    "ema": EMA,
    "early_stop": EarlyStop,
    "flight_recorder": FlightRecorder,
    "checkpoints": Checkpoints,
    "dashboard": Dashboard,
    "pictures": Pictures,
    "report": Report,
}


def configuration(trainer: L.Trainer, detector: L.LightningModule) -> str:
    """Text of a config.yaml, which commands take like that of a fit of their own: what the objects were made with."""
    assert isinstance(detector, Detector)
    data, linked = data_of(trainer), {"names", *UNLESS_GIVEN}
    options: dict[str, Any] = {
        "seed_everything": data.seed,
        "data": {name: value for name, value in data.options.items() if name != "seed"},
        "model": {name: value for name, value in detector.hparams.items() if name not in linked},
    }
    for group, kind in CALLBACKS.items():
        for callback in [c for c in trainer.callbacks if type(c) is kind]:  # type: ignore[attr-defined]
            names = [name for name in inspect.signature(kind.__init__).parameters if hasattr(callback, name)]
            options[group] = {name: getattr(callback, name) for name in names}
    given = ("max_epochs", "precision", "gradient_clip_val", "gradient_clip_algorithm", "check_val_every_n_epoch")
    options["trainer"] = {name: getattr(trainer, name) for name in given}
    return yaml.safe_dump(json.loads(json.dumps(options, default=str)), sort_keys=False, allow_unicode=True)
