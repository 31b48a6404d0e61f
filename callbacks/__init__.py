"""Callbacks of the recipe: they read the Trainer's state, call a pure function of `detector`, write the result."""

from callbacks.agreement import Agreement
from callbacks.anchors import anchors
from callbacks.autoanchor import AutoAnchor
from callbacks.checkpoints import AtomicCheckpointIO, Checkpoints
from callbacks.combinations import check_combinations, strategy_name
from callbacks.dashboard import Dashboard
from callbacks.doctor import DoctorCheck
from callbacks.early_stop import EarlyStop
from callbacks.ema import EMA
from callbacks.epoch_lines import EpochLines
from callbacks.flight_recorder import FlightRecorder
from callbacks.fsdp2 import FSDP2
from callbacks.incident import Incident, RollBack
from callbacks.iterations import Iterations
from callbacks.metrics_files import MetricsFiles
from callbacks.pictures import Pictures
from callbacks.predictions import PredictionWriter
from callbacks.progress import Progress
from callbacks.ranks import LostContact, Ranks, die_with_parent, first_to_say
from callbacks.recipe import as_list, in_order, own_folder, recipe
from callbacks.report import Report
from callbacks.run_folder import RunFolder
from callbacks.run_state import RunState
from callbacks.wandb_logger import WandbLogger
from callbacks.warmup import Warmup
from callbacks.zero2 import ZeRO2

__all__ = [
    "EMA",
    "FSDP2",
    "Agreement",
    "AtomicCheckpointIO",
    "AutoAnchor",
    "Checkpoints",
    "Dashboard",
    "DoctorCheck",
    "EarlyStop",
    "EpochLines",
    "FlightRecorder",
    "Incident",
    "Iterations",
    "LostContact",
    "MetricsFiles",
    "Pictures",
    "PredictionWriter",
    "Progress",
    "Ranks",
    "Report",
    "RollBack",
    "RunFolder",
    "RunState",
    "WandbLogger",
    "Warmup",
    "ZeRO2",
    "anchors",
    "as_list",
    "check_combinations",
    "die_with_parent",
    "first_to_say",
    "in_order",
    "own_folder",
    "recipe",
    "strategy_name",
]
