"""The commands and groups of options, and where they stand in the source; nothing here is imported that takes seconds."""

from typing import Any

from detector.command_line import CommandLine

FUNCTIONS = {  # commands that need no Trainer
    "pipeline": "detector.pipeline.study:study",
    "import-hyp": "detector.evolve.import_hyp:import_hyp",
    "export": "detector.export.command:export",
    "report": "detector.report.command:report",
    "compare": "detector.report.compare:compare",
}
METHODS = {  # of the Trainer
    **{name: f"lightning.pytorch.trainer.trainer:Trainer.{name}" for name in ("fit", "validate", "test", "predict")},
    "anchors": "callbacks.anchors:anchors",
    "doctor": "detector.doctor.command:run_doctor",
    "benchmark": "detector.benchmark.command:benchmark",
    "evolve": "detector.evolve.command:run_evolution",
}
CALLBACKS = {  # whose options are groups of the command line; the warm-up early: a LearningRateMonitor shows what is used
    "ranks": "callbacks.ranks:Ranks",
    "doctor": "callbacks.doctor:DoctorCheck",
    "autoanchor": "callbacks.autoanchor:AutoAnchor",
    "warmup": "callbacks.warmup:Warmup",
    "ema": "callbacks.ema:EMA",
    "early_stop": "callbacks.early_stop:EarlyStop",
    "flight_recorder": "callbacks.flight_recorder:FlightRecorder",
    "checkpoints": "callbacks.checkpoints:Checkpoints",
    "dashboard": "callbacks.dashboard:Dashboard",
    "pictures": "callbacks.pictures:Pictures",
    "report": "callbacks.report:Report",
}
GROUPS = {
    "trainer": "lightning.pytorch.trainer.trainer:Trainer",
    "model": "detector.module:Detector",
    "data": "detector.data.datamodule:DetectionData",
    **CALLBACKS,
}
TRAINER_OPTIONS: dict[str, Any] = {  # the recipe's
    "max_epochs": 100,
    "precision": "16-mixed",
    "devices": 1,
    "gradient_clip_val": 10.0,
    "logger": False,
    "num_sanity_val_steps": 0,  # a validation before the training would only take time
    "use_distributed_sampler": False,  # the data share themselves out over the processes
    "enable_model_summary": False,
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
