"""The training of an individual: a process of `fit`, watched from here."""

import contextlib
import csv
import json
import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from optuna.trial import Trial, TrialState

from boltbox.detector.commands.benchmark.trial import reason
from boltbox.detector.distributed.process_group import child_environment

# seconds that a training may take to save a checkpoint when it is asked to stop
STOP_TIMEOUT = 60.0
RESTARTS = 2  # of a run that is killed each time
# A run leaves metrics.csv, metrics.json, config.yaml, log.txt and, for a while, checkpoints.
QUIET = (
    "--doctor.enabled false --pictures.enabled false --report.enabled false "
    "--trainer.enable_progress_bar false --ckpt_path auto"
)
METRICS = ("P", "R", "mAP50", "mAP50-95", "fitness")


class Outcome(NamedTuple):
    """What came of an individual.

    Attributes:
        fitness: None if it failed or was pruned.
        state: complete, failed or pruned.
        metrics: of the best epoch.
        reason: why it failed or was pruned.
    """

    fitness: float | None
    state: TrialState = TrialState.COMPLETE
    metrics: Mapping[str, float] = {}
    reason: str = ""


class Training:
    """An individual that is being trained.

    Args:
        trial: of Optuna's, which learns the fitness after each epoch if it may prune.
        line: command line that trains it.
        run: folder.
        environment: variables for its process.
        score: the metric that is its fitness.
    """

    def __init__(
        self,
        trial: Trial,
        line: Sequence[str],
        run: Path,
        environment: Mapping[str, str],
        score: str,
    ) -> None:
        self.trial, self.run, self.environment, self.score = trial, run, environment, score
        self.line = [*line, *QUIET.split(), "--run", str(run)]
        self.restarts, self.reported = RESTARTS, 0
        self._start()

    def _start(self) -> None:
        """It continues from its last checkpoint if there is one."""
        self.run.mkdir(parents=True, exist_ok=True)
        with open(self.run / "log.txt", "wb") as log:
            # In a session of its own: Ctrl-C reaches `evolve` alone, which then asks it to stop.
            self._process = subprocess.Popen(
                self.line,
                env=child_environment(**self.environment),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def poll(self) -> Outcome | None:
        """None while it lasts."""
        code = self._process.poll()
        if code is None:
            return self._report()
        self.kill()  # what it has left running
        if (code < 0 or code > 128) and self.restarts:  # killed by a signal
            self.restarts -= 1
            self._start()
            return None
        file = self.run / "metrics.json"
        if code or not file.is_file():
            why = reason(code, (self.run / "log.txt").read_text(errors="replace"), math.inf)
            return Outcome(None, TrialState.FAIL, reason=why)
        epoch = json.loads(file.read_text())
        metrics = {name: float(epoch[name]) for name in METRICS}
        row = next((r for r in self._rows() if int(r["epoch"]) == epoch["epoch"]), {})
        losses = (k for k, v in row.items() if v and k.startswith("val/") and k.endswith("_loss"))
        metrics |= {name: float(row[name]) for name in losses}
        fitness = metrics[self.score]
        if math.isfinite(fitness):
            return Outcome(fitness, metrics=metrics)
        return Outcome(None, TrialState.FAIL, reason=f"its fitness is {fitness}")

    def ask_to_stop(self) -> None:
        """It saves a checkpoint."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Until it has stopped."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT)
        self.kill()

    def kill(self) -> None:
        """Nothing of it is left running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _report(self) -> Outcome | None:
        """Report new epochs to the pruner."""
        rows = [row for row in self._rows() if row.get("val/fitness")]
        for row in rows[self.reported :]:
            epochs = int(row["epoch"]) + 1
            self.trial.report(float(row["val/fitness"]), epochs)
            if self.trial.should_prune():
                return Outcome(None, TrialState.PRUNED, reason=f"pruned after {epochs} epochs")
        self.reported = len(rows)
        return None

    def _rows(self) -> list[dict[str, str]]:
        """Of its metrics so far."""
        with (
            contextlib.suppress(FileNotFoundError),
            open(self.run / "metrics.csv", newline="") as file,
        ):
            return list(csv.DictReader(file))
        return []
