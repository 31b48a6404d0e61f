"""The commands and groups of options, and where they stand in the source; nothing here is imported that takes seconds."""

from typing import Any

from detector.commands.parsing.command_line import CommandLine
from detector.training.trainer_options import TRAINER_OPTIONS

FUNCTIONS = {  # commands that need no Trainer
    "pipeline": "detector.commands.pipeline.study:study",
    "import-hyp": "detector.commands.evolve.import_hyp:import_hyp",
    "export": "detector.commands.export.command:export",
    "report": "detector.commands.report:report",
    "compare": "detector.commands.compare:compare",
}
METHODS = {  # of the Trainer
    **{name: f"lightning.pytorch.trainer.trainer:Trainer.{name}" for name in ("fit", "validate", "test", "predict")},
    "anchors": "detector.commands.anchors:anchors",
    "doctor": "detector.commands.doctor.command:run_doctor",
    "benchmark": "detector.commands.benchmark.command:benchmark",
    "evolve": "detector.commands.evolve.command:run_evolution",
}
CALLBACKS = {  # whose options are groups of the command line; the warm-up early: a LearningRateMonitor shows what is used
    "ranks": "callbacks.collective_watchdog:CollectiveWatchdog",
    "doctor": "callbacks.doctor:DoctorCheck",
    "autoanchor": "callbacks.autoanchor:AutoAnchor",
    "warmup": "callbacks.warmup:Warmup",
    "ema": "callbacks.ema:EMA",
    "early_stop": "callbacks.early_stop:EarlyStop",
    "flight_recorder": "callbacks.training_guard:TrainingGuard",
    "checkpoints": "callbacks.checkpoints:Checkpoints",
    "dashboard": "callbacks.dashboard:Dashboard",
    "pictures": "callbacks.pictures:Pictures",
    "report": "callbacks.report:Report",
}
GROUPS = {
    "trainer": "lightning.pytorch.trainer.trainer:Trainer",
    "model": "detector.training.module:Detector",
    "data": "detector.data.datamodule:DetectionData",
    **CALLBACKS,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "trainer": TRAINER_OPTIONS,
    "validate": {"verbose": False},  # Lightning's table of figures; ours is by class
    "test": {"verbose": False},
    "predict": {"return_predictions": False, "model.conf": 0.25, "model.iou": 0.45, "model.max_det": 1000},
}
LINKS = {  # option: what it follows
    "data.seed": "seed_everything",
    "model.seed": "seed_everything",
    "model.image_size": "data.image_size",
    "model.batch_size": "data.batch_size",
    "model.names": "data.names",
}
LINE = CommandLine(GROUPS, METHODS, FUNCTIONS, {"predict": {"save": "callbacks.predictions:PredictionWriter"}}, LINKS, DEFAULTS)
