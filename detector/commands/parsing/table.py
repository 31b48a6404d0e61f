"""The groups of options of the commands with a Trainer: the class of each, as `module:Class`, so
that nothing is imported here that takes seconds."""

from typing import Any

from boltbox.detector.training.trainer_options import TRAINER_OPTIONS

# whose options are groups of the command line; the warm-up early: a LearningRateMonitor shows what
# is used
CALLBACKS = {
    "watchdog": "boltbox.callbacks.watchdog:Watchdog",
    "doctor": "boltbox.callbacks.doctor:DoctorCheck",
    "autoanchor": "boltbox.callbacks.autoanchor:AutoAnchor",
    "warmup": "boltbox.callbacks.warmup:Warmup",
    "ema": "boltbox.callbacks.ema:EMA",
    "early_stop": "boltbox.callbacks.early_stop:EarlyStop",
    "guard": "boltbox.callbacks.guard:Guard",
    "checkpoints": "boltbox.callbacks.checkpoints:Checkpoints",
    "dashboard": "boltbox.callbacks.dashboard:Dashboard",
    "pictures": "boltbox.callbacks.pictures:Pictures",
    "report": "boltbox.callbacks.report:Report",
}
GROUPS = {
    "trainer": "lightning.pytorch.trainer.trainer:Trainer",
    "model": "boltbox.detector.training.module:Detector",
    "data": "boltbox.detector.data.datamodule:DetectionData",
    **CALLBACKS,
}
# more groups, of single commands
GROUPS_OF = {"predict": {"save": "boltbox.callbacks.predictions:PredictionWriter"}}
DEFAULTS: dict[str, dict[str, Any]] = {
    "trainer": TRAINER_OPTIONS,
    "validate": {"verbose": False},  # Lightning's table of figures; ours is by class
    "test": {"verbose": False},
    "predict": {
        "return_predictions": False,
        "model.conf": 0.25,
        "model.iou": 0.45,
        "model.max_det": 1000,
    },
}
LINKS = {  # option: what it follows
    "data.seed": "seed_everything",
    "model.names": "data.names",
}
