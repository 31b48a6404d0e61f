"""Callbacks of the recipe: they read the Trainer's state, call a pure function of `detector`, write
the result."""

from boltbox.callbacks.autoanchor import AutoAnchor
from boltbox.callbacks.checkpoints import Checkpoints
from boltbox.callbacks.dashboard import Dashboard
from boltbox.callbacks.doctor import DoctorCheck
from boltbox.callbacks.early_stop import EarlyStop
from boltbox.callbacks.ema import EMA
from boltbox.callbacks.epoch_table import EpochTable
from boltbox.callbacks.guard import Guard
from boltbox.callbacks.metrics_files import MetricsFiles
from boltbox.callbacks.pictures import Pictures
from boltbox.callbacks.progress import Progress
from boltbox.callbacks.recipe import recipe
from boltbox.callbacks.report import Report
from boltbox.callbacks.run_folder import RunFolder
from boltbox.callbacks.run_state import RunState
from boltbox.callbacks.warmup import Warmup
from boltbox.callbacks.watchdog import Watchdog

__all__ = [
    "EMA",
    "AutoAnchor",
    "Checkpoints",
    "Dashboard",
    "DoctorCheck",
    "EarlyStop",
    "EpochTable",
    "Guard",
    "MetricsFiles",
    "Pictures",
    "Progress",
    "Report",
    "RunFolder",
    "RunState",
    "Warmup",
    "Watchdog",
    "recipe",
]
