"""Callbacks of the recipe: each does one thing of a training at the hooks of Lightning, with the
functions of `detector`."""

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
