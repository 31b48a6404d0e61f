"""An evolution with a formula in place of the training. As a script: a worker on a study of it, which imports no torch
and waits for a file `go`."""

import math
import os
import sys
import time
from pathlib import Path

from detector.commands.evolve.lease import Lease, Outcome
from detector.commands.evolve.plan import Plan
from detector.commands.evolve.space import Gene
from detector.commands.evolve.study import Study
from detector.commands.evolve.worker import stop_signal, work

GENES = (
    Gene("a", "model.a", 0.0, 1.0),
    Gene("rate", "model.rate", 1e-4, 1.0, log=True),
    Gene("n", "model.n", 1, 9, whole=True),
)
PLAN = Plan(GENES, start=({"a": 0.1, "rate": 0.5, "n": 2.0},), population=6, generations=4, seed=3)
PACE = 0.2  # seconds a training


def fitness(values: dict[str, float]) -> float:
    """1 at (0.7, 0.01, 4)."""
    off = (values["a"] - 0.7, math.log10(values["rate"] / 0.01) / 4, (values["n"] - 4) / 8)
    return math.exp(-sum(x * x for x in off))


def train(lease: Lease) -> Outcome:
    """Slowly, and it is written down that it was begun."""
    with open(lease.folder / "begun.txt", "a") as file:
        file.write(f"{lease.individual.number} {os.getpid()}\n")
    for _ in range(10):
        lease.heartbeat()
        time.sleep(PACE / 10)
    found = fitness(lease.individual.values)
    return Outcome(found, {"mAP50": found})


if __name__ == "__main__":
    assert "torch" not in sys.modules
    folder, stop = Path(sys.argv[1]), stop_signal()
    (folder / f"{os.getpid()}.ready").touch()
    while not (folder / "go").exists():  # together with the others, however long they take to start
        time.sleep(0.02)
    work(Study(folder, grace_period=float(sys.argv[2])), train, lambda: None, stop)
