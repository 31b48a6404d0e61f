"""Callbacks of the recipe: they read the Trainer's state, call a pure function of `detector`, write the result."""

from callbacks.autoanchor import AutoAnchor
from callbacks.checkpoints import Checkpoints
from callbacks.collective_watchdog import CollectiveWatchdog
from callbacks.consistency_check import ConsistencyCheck
from callbacks.dashboard import Dashboard
from callbacks.doctor import DoctorCheck
from callbacks.early_stop import EarlyStop
from callbacks.ema import EMA
from callbacks.epoch_lines import EpochLines
from callbacks.iterations import Iterations
from callbacks.metrics_files import MetricsFiles
from callbacks.pictures import Pictures
from callbacks.predictions import PredictionWriter
from callbacks.progress import Progress
from callbacks.recipe import recipe
from callbacks.report import Report
from callbacks.run_folder import RunFolder
from callbacks.run_state import RunState
from callbacks.training_guard import TrainingGuard
from callbacks.warmup import Warmup

FlightRecorder, Ranks = TrainingGuard, CollectiveWatchdog  # their older names, for scripts

__all__ = [
    "EMA",
    "AutoAnchor",
    "Checkpoints",
    "CollectiveWatchdog",
    "ConsistencyCheck",
    "Dashboard",
    "DoctorCheck",
    "EarlyStop",
    "EpochLines",
    "FlightRecorder",
    "Iterations",
    "MetricsFiles",
    "Pictures",
    "PredictionWriter",
    "Progress",
    "Ranks",
    "Report",
    "RunFolder",
    "RunState",
    "TrainingGuard",
    "Warmup",
    "recipe",
]
