"""The recipe's callbacks that have options, and the config.yaml of a training that a script has
started."""

import inspect
import json
from typing import Any

import lightning as L

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
from boltbox.detector.system.configuration import plain
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


TRAINER = (  # options that are recorded
    "max_epochs",
    "precision",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "check_val_every_n_epoch",
)


def configuration(trainer: L.Trainer, detector: Detector) -> dict[str, Any]:
    """The content of a config.yaml with the options that the objects were made with; commands take
    it like that of a fit."""
    options: dict[str, Any] = {}
    data = data_of(trainer)
    if data:
        options["seed_everything"] = data.seed
        augment = data.augment.to_dict()
        options["data"] = data.options | {"batch_size": data.batch_size, "augment": augment}
        options["data"].pop("seed")
    options["model"] = dict(detector.hparams)
    del options["model"]["names"]
    for group, kind in CALLBACKS.items():
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if type(callback) is kind:
                parameters = inspect.signature(kind).parameters
                options[group] = {name: getattr(callback, name) for name in parameters}
    options["trainer"] = {name: getattr(trainer, name) for name in TRAINER}
    return json.loads(json.dumps(plain(options), default=str))
