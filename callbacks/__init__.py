"""Callbacks of the recipe: they read the Trainer's state, call a pure function of `detector`, write
the result."""

from boltbox.callbacks.configuration import (
    EMA,
    AutoAnchor,
    Checkpoints,
    Dashboard,
    DoctorCheck,
    EarlyStop,
    Guard,
    Pictures,
    Report,
    Warmup,
    Watchdog,
)
from boltbox.callbacks.recipe import (
    EpochTable,
    MetricsFiles,
    Progress,
    RunFolder,
    RunState,
    recipe,
)
