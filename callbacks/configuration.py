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
from boltbox.detector.training.recipe import data_of

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


def recipe_callbacks() -> dict[str, type[L.Callback]]:
    """The classes of the recipe's callbacks that have options, by the names of their groups on the
    command line."""
    return {group: kind for group, kind in CALLBACKS.items() if group != "watchdog"}


def configuration(trainer: L.Trainer, detector: L.LightningModule) -> str:
    """The text of a config.yaml with the options that the objects were made with; commands take it
    like that of a fit."""
    assert isinstance(detector, Detector)
    data = data_of(trainer)
    options: dict[str, Any] = {
        "seed_everything": data.seed,
        "data": {name: value for name, value in data.options.items() if name != "seed"}
        | {"batch_size": data.batch_size},
        "model": {name: value for name, value in detector.hparams.items() if name != "names"},
    }
    for group, kind in recipe_callbacks().items():
        for callback in [c for c in trainer.callbacks if type(c) is kind]:  # type: ignore[attr-defined]
            names = [
                name
                for name in inspect.signature(kind.__init__).parameters
                if hasattr(callback, name)
            ]
            options[group] = {name: getattr(callback, name) for name in names}
    given = (
        "max_epochs",
        "precision",
        "gradient_clip_val",
        "gradient_clip_algorithm",
        "check_val_every_n_epoch",
    )
    options["trainer"] = {name: getattr(trainer, name) for name in given}
    return yaml.safe_dump(
        json.loads(json.dumps(options, default=str)), sort_keys=False, allow_unicode=True
    )
