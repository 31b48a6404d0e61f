"""The recipe's callbacks that have options, and the config.yaml of a training that a script has
started."""

import inspect
import json
from typing import Any

import lightning as L
import yaml

from boltbox.callbacks.autoanchor import AutoAnchor
from boltbox.callbacks.checkpoints import Checkpoints
from boltbox.callbacks.dashboard import Dashboard
from boltbox.callbacks.doctor import DoctorCheck
from boltbox.callbacks.early_stop import EarlyStop
from boltbox.callbacks.ema import EMA
from boltbox.callbacks.guard import Guard
from boltbox.callbacks.pictures import Pictures
from boltbox.callbacks.report import Report
from boltbox.callbacks.warmup import Warmup
from boltbox.callbacks.watchdog import Watchdog
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_data import data_of

# Groups of options of the command line, in the order of their hooks: pictures and report last.
CALLBACKS: dict[str, type[L.Callback]] = {
    "watchdog": Watchdog,
    "doctor": DoctorCheck,
    "autoanchor": AutoAnchor,
    "warmup": Warmup,
    "ema": EMA,
    "early_stop": EarlyStop,
    "guard": Guard,
    "checkpoints": Checkpoints,
    "dashboard": Dashboard,
    "pictures": Pictures,
    "report": Report,
}


def configuration(trainer: L.Trainer, detector: Detector) -> str:
    """The text of a config.yaml with the options that the objects were made with; commands take it
    like that of a fit."""
    data = data_of(trainer)
    options: dict[str, Any] = {}
    if data:
        given = {name: value for name, value in data.options.items() if name != "seed"}
        options["seed_everything"] = data.seed
        options["data"] = given | {"batch_size": data.batch_size}
    options["model"] = {name: value for name, value in detector.hparams.items() if name != "names"}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for group in [group for group, kind in CALLBACKS.items() if type(callback) is kind]:
            names = inspect.signature(type(callback).__init__).parameters
            options[group] = {name: vars(callback)[name] for name in names if name != "self"}
    shown = (
        "max_epochs",
        "precision",
        "gradient_clip_val",
        "gradient_clip_algorithm",
        "check_val_every_n_epoch",
    )
    options["trainer"] = {name: getattr(trainer, name) for name in shown}
    return yaml.safe_dump(
        json.loads(json.dumps(options, default=str)), sort_keys=False, allow_unicode=True
    )
