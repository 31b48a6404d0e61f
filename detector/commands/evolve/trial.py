"""Training an individual: processes of their own, watched from here."""

import contextlib
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detector.commands.benchmark.trial import reason
from detector.commands.evolve.individual import Individual, best
from detector.commands.evolve.lease import Lease, Outcome, Stopped
from detector.commands.evolve.space import Gene
from detector.system import parent

POLL_INTERVAL = 0.5  # seconds between two looks at a training
STOP_TIMEOUT = 60.0  # seconds that a training may take to save a checkpoint when it is asked to stop
# A trial leaves metrics.csv, metrics.json, config.yaml, log.txt and, for a while, checkpoints.
QUIET = {
    "doctor.enabled": "false",
    "pictures.enabled": "false",
    "report.enabled": "false",
    "trainer.logger": "false",
    "trainer.enable_progress_bar": "false",
}


@dataclass(frozen=True)
class Training:
    """How individuals are trained. Calling it trains one.

    Attributes:
        fit: command line that trains, to which options are added.
        folder: for the trials.
        genes: with the options that they are.
        deadline: seconds after which one is given up.
        seeds: of the trainings whose mean fitness counts.
        literal: mAP50 alone is what counts.
    """

    fit: Sequence[str]
    folder: Path
    genes: Sequence[Gene]
    deadline: float | None = None
    seeds: Sequence[int] = (0,)
    literal: bool = False

    def __call__(self, lease: Lease) -> Outcome:
        """Train with each seed, or go on where an interrupted worker was.

        Raises:
            Interrupted: it was given up; its checkpoint is there.
        """
        outcomes: list[Outcome] = []
        for seed in self.seeds:
            outcome = self._train(lease, seed, self.run(lease.individual, seed))
            if outcome.fitness is None or outcome.pruned:
                return outcome
            outcomes.append(outcome)
        count = len(outcomes)
        metrics = {k: sum(o.metrics[k] for o in outcomes) / count for k in outcomes[0].metrics}
        return Outcome(sum(o.fitness or 0.0 for o in outcomes) / count, metrics)

    def run(self, individual: Individual, seed: int) -> Path:
        """The run folder of a training."""
        home = self.folder / f"{individual.number:04d}"
        return home if len(self.seeds) == 1 else home / f"seed-{seed}"

    def clean(self, individuals: Sequence[Individual]) -> None:
        """Remove the checkpoints of all that have ended, but those of the best. Who is not the best once never will be."""
        winner = best(individuals)
        for individual in individuals:
            if individual.state != "running" and individual is not winner:
                for seed in self.seeds:
                    shutil.rmtree(self.run(individual, seed) / "checkpoints", ignore_errors=True)

    def options(self, individual: Individual) -> list[str]:
        """Its values, as options of `fit`."""
        words = []
        for gene in self.genes:
            value = individual.values[gene.name]
            words += [f"--{gene.option}", repr(round(value) if gene.whole else value)]
        return words

    def _train(self, lease: Lease, seed: int, run: Path) -> Outcome:
        quiet = [word for option, value in QUIET.items() for word in (f"--{option}", value)]
        line = [*self.fit, *self.options(lease.individual), *quiet, "--seed_everything", str(seed)]
        line += ["--run", str(run), "--ckpt_path", "auto"]
        run.mkdir(parents=True, exist_ok=True)
        with open(run / "log.txt", "wb") as log:
            began = time.monotonic()
            process = subprocess.Popen(
                line, env=parent.environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                hopeless = self._watch(lease, process, run, began, seed == self.seeds[0])
                code = process.poll()
            except Stopped:
                process.send_signal(signal.SIGTERM)  # it saves a checkpoint
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT)
                raise
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if hopeless is not None:
            return hopeless
        if code != 0:
            log_text = (run / "log.txt").read_text(errors="replace")
            return Outcome(None, reason=reason(code, log_text, self.deadline or math.inf))
        return self._result(run)

    def _watch(self, lease: Lease, process: subprocess.Popen[bytes], run: Path, began: float, reports: bool) -> Outcome | None:
        """Until it has ended, or its time is over; what came of it if it is ended early as hopeless."""
        reported = 0
        while process.poll() is None:
            lease.heartbeat()
            if self.deadline is not None and time.monotonic() - began > self.deadline:
                return None
            if reports:
                rows = epochs(run)
                for epoch, fitness in rows[reported:]:
                    if lease.report(epoch + 1, fitness):
                        highest = max(f for _, f in rows)
                        return Outcome(highest, reason=f"ended after epoch {epoch + 1}: fitness {fitness:.4g}", pruned=True)
                reported = len(rows)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_INTERVAL)
        return None

    def _result(self, run: Path) -> Outcome:
        """Of the best epoch. Losses are in metrics.csv only."""
        try:
            epoch = json.loads((run / "metrics.json").read_text())
        except FileNotFoundError:
            return Outcome(None, reason="the training was never validated")
        metrics = {name: float(epoch[name]) for name in ("P", "R", "mAP50", "mAP50-95", "fitness")}
        row = next((r for r in _rows(run) if int(r["epoch"]) == epoch["epoch"]), {})
        metrics |= {name: float(row[name]) for name in row if name.startswith("val/") and name.endswith("_loss") and row[name]}
        fitness = metrics["mAP50" if self.literal else "fitness"]
        return Outcome(fitness, metrics) if math.isfinite(fitness) else Outcome(None, metrics, f"its fitness is {fitness}")


def epochs(run: Path) -> list[tuple[int, float]]:
    """(epoch, fitness) of a run's validated epochs so far."""
    return [(int(row["epoch"]), float(row["val/fitness"])) for row in _rows(run) if row.get("val/fitness")]


def _rows(run: Path) -> list[dict[str, str]]:
    with contextlib.suppress(FileNotFoundError), open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))
    return []
