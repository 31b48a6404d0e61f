"""Which workers are gone, by their processes on this machine and by their heartbeats on others.

Optuna's heartbeat is not used: the journal has none, and a database's takes a worker for alive that died before its first one.
"""

import time
from typing import Any

from optuna.trial import FrozenTrial

from detector.commands.evolve.process import Process

HEARTBEAT_INTERVAL = 20.0  # seconds
GRACE_PERIOD = 90.0  # seconds without a heartbeat after which a worker on another machine counts as dead
HEARTBEATS = "beat"  # attribute of a trial: their number so far


class Heartbeats:
    """What a process has seen of the others' heartbeats. Clocks of different machines are not compared.

    Args:
        grace_period: seconds without one, while this process looked on.
    """

    def __init__(self, grace_period: float) -> None:
        self.grace_period = grace_period
        self._seen: dict[int, tuple[Any, float]] = {}  # trial -> its last heartbeat, and when this process first saw it

    def is_dead(self, trial: FrozenTrial, me: Process) -> bool:
        """Whether the worker of a running trial is gone, as far as the process `me` can know."""
        owner = trial.user_attrs.get("owner")
        if owner and Process(*owner).gone(me):
            return True
        if owner and Process(*owner).table == me.table:
            return False
        last, now = (trial._trial_id, trial.user_attrs.get(HEARTBEATS), owner), time.monotonic()
        before, since = self._seen.get(trial.number, (None, now))
        if before != last:
            since = now
        self._seen[trial.number] = last, since
        return now - since > self.grace_period
