"""Trying the settings one after the other."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from detector.commands.benchmark.report import Report, Row
from detector.commands.benchmark.setting import Setting
from detector.commands.benchmark.trial import Trial, attempt
from detector.system.atomic_file import write_atomically
from detector.system.host import host
from detector.system.rank_zero import rank_zero_print

STOPWATCH = "detector.commands.benchmark.stopwatch.Stopwatch"
# Real training steps and nothing beside them: no validation, anchors, files or bar. The schedule is that after the warm-up, and
# the learning rate 0, for without its warm-up a training may diverge.
BARE = {
    "autoanchor.enabled": "false",
    "doctor.enabled": "false",
    "report.enabled": "false",
    "warmup.warmup_epochs": "0",
    "model.lr0": "0",
    "trainer.max_epochs": "1000000",
    "trainer.check_val_every_n_epoch": "1000000",
    "trainer.limit_val_batches": "0",
    "trainer.enable_progress_bar": "false",
    "trainer.logger": "false",
}


def measure(
    fit: Sequence[str],
    options: Sequence[str],
    settings: Sequence[Setting],
    folder: Path,
    seconds: float,
    deadline: float,
    rounds: int,
) -> Report:
    """Measure each setting in a process of its own; a line for each tells how it went.

    In several rounds the settings take turns, and the fastest trial of each counts: what other programs take only slows down.

    Args:
        fit: Command that trains.
        options: The user's.
        settings: What to measure.
        folder: For benchmark.json, benchmark.md and benchmark.png, which grow with every row.
        seconds: To measure each for, after its first steps.
        deadline: Seconds after which a trial is given up.
        rounds: Trials of each setting.
    """
    report = Report(host(), [])
    bare = [x for k, v in BARE.items() for x in (f"--{k}", v)]
    for k in range(rounds * len(settings)):
        place = k % len(settings)
        setting, chosen = settings[place], [*options, *settings[place].options()]
        row = Row(setting, chosen, [timed(fit, [*chosen, *bare], seconds, deadline)])
        rank_zero_print(f"{k + 1}/{rounds * len(settings)} {setting}: {row.summary()}")
        if k < len(settings):
            report.rows.append(row)
        else:
            report.rows[place].trials.extend(row.trials)
        save(report, folder)
    return report


def timed(fit: Sequence[str], options: Sequence[str], seconds: float, deadline: float) -> Trial:
    """A training with the Stopwatch, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="boltbox-") as folder:
        watch = Path(folder) / "stopwatch.json"
        line = [*fit, *options, "--run", f"{folder}/run", f"--trainer.callbacks+={STOPWATCH}",
                f"--trainer.callbacks.report={watch}", f"--trainer.callbacks.seconds={seconds}"]  # fmt: skip
        return attempt(line, watch, deadline)


def save(report: Report, folder: Path) -> None:
    """benchmark.json, benchmark.md, benchmark.png."""
    texts = {"benchmark.json": json.dumps(report.content(), indent=1), "benchmark.md": report.page("benchmark.png")}
    for name, text in texts.items():
        write_atomically(folder / name, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]
    report.draw(folder / "benchmark.png")
